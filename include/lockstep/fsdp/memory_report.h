// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <source_location>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/device/module_ref.h>

namespace lockstep {

/// Bytes of memory by category.
struct MemoryBytes {
  std::int64_t parameters = 0;        ///< and buffers of the module
  std::int64_t gradients = 0;         ///< and what DDP and fully_shard() reduce them in
  std::int64_t optimizer_states = 0;  ///< bytes of the states of the optimizer
  std::int64_t gathered = 0;          ///< by fully_shard(): parameters of other ranks, until they are freed
  std::int64_t activations = 0;       ///< that forward keeps for backward

  /// The sum of all parts, in bytes.
  std::int64_t total() const;
  bool operator==(const MemoryBytes&) const = default;
};

/// Options of memory_report().
struct MemoryReportOptions {
  /// Computes a loss and returns it. Called once, if given: what it allocates on this thread and does not
  /// free is the activations.
  std::function<at::Tensor()> forward = {};
};

/// The result of memory_report().
struct MemoryReport {
  /// On this rank. Memory that ranks share counts in equal parts, as in the kernel's PSS.
  MemoryBytes rank;
  /// On this rank's host: the sum over its ranks. Memory that they share counts once.
  MemoryBytes host;
  int ranks = 1;  ///< on this host
};

/// Counts the memory of a module's tensors and the optimizer's states. Tensors that share memory count once.
/// The module may be one of fully_shard(), of DistributedDataParallel or of one process. Memory of the
/// backend, of libraries and of idle blocks of allocators does not count. Collective over the default group,
/// if there is one. Throws ArgumentError for an optimizer that state_dict() does not support.
///
///     std::cout << lockstep::memory_report(net, optimizer);
MemoryReport memory_report(ConstModuleRef module, const torch::optim::Optimizer& optimizer,
                           const MemoryReportOptions& options = {},
                           std::source_location where = std::source_location::current());

/// Prints a table.
std::ostream& operator<<(std::ostream& stream, const MemoryReport& report);

/// How the ranks divide parameters, gradients and optimizer states.
enum class ShardingForm : std::uint8_t {
  ddp,           ///< DistributedDataParallel: every rank has all
  zero1,         ///< with ZeroRedundancyOptimizer: every rank has a part of the states
  gathered,      ///< fully_shard() over all ranks
  shared,        ///< fully_shard() over the ranks of a host, which share one copy; hosts are replicas
  zero1_shared,  ///< zero1 with share_parameters(); on one host
};

/// The arguments of estimate_memory().
struct MemoryPlan {
  std::int64_t parameters = 0;        ///< elements; all of them are trained
  at::ScalarType dtype = at::kFloat;  ///< of the parameters
  /// MixedPrecisionPolicy::param_dtype of fully_shard().
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Tensors of a parameter's shape and dtype that the optimizer has for it: 2 for Adam and AdamW, 1 for SGD
  /// with momentum, 0 for SGD.
  int optimizer_states = 2;
  int ranks_per_host = 1;  ///< ranks of each host
  int hosts = 1;           ///< number of hosts
  /// NUMA nodes of a host to which its ranks are bound: each has one copy of shared parameters.
  int numa_nodes = 1;
  ShardingForm form = ShardingForm::ddp;  ///< how parameters, gradients and states are distributed
  /// Elements of the largest group of fully_shard(). Default: one group of all parameters.
  std::optional<std::int64_t> largest_group = std::nullopt;
  /// Elements of the outermost module's group of fully_shard(), which stays gathered until backward.
  std::int64_t outermost_group = 0;
  std::int64_t activations = 0;  ///< bytes of a rank
  /// Bytes of a host. Default: what is left of this host's memory and that of its cgroups.
  std::optional<std::int64_t> limit = std::nullopt;
};

/// The result of estimate_memory().
struct MemoryEstimate {
  /// An estimate for one form of distribution and number of hosts.
  struct Choice {
    ShardingForm form;  ///< how parameters, gradients and states are distributed
    int hosts;          ///< number of hosts
    MemoryBytes rank;   ///< as in MemoryReport
    MemoryBytes host;   ///< bytes of one host
  };

  Choice planned;          ///< the plan that was given
  std::int64_t limit = 0;  ///< bytes of memory of a host
  int ranks_per_host = 1;  ///< of the plan
  /// Choices that fit, with as many ranks a host: other forms or, if none of them fits, the fewest hosts
  /// with which one does. Empty if the plan fits, or if nothing would.
  std::vector<Choice> instead = {};

  /// Whether the planned bytes of a host are within the limit.
  bool fits() const { return planned.host.total() <= limit; }
};

/// The memory that training needs at its peak, from the sizes alone. With p parameters of e bytes, s states,
/// n ranks, of which m are on a host, and groups of g elements, a rank has
///
/// | form         | parameters | gradients    | states    | gathered   |
/// |--------------|------------|--------------|-----------|------------|
/// | ddp          | p e        | p e          | s p e     |            |
/// | zero1        | p e        | p e          | s p e / n |            |
/// | gathered     | p e / n    | p e / n + 2g | s p e / n | 2g + outer |
/// | shared       | p e / m    | p e / m + 2g | s p e / m |            |
/// | zero1_shared | p e / m    | p e          | s p e / m |            |
///
/// where g and outer are bytes. The column gathered counts them in param_dtype, the other columns in dtype. A
/// group has two gradients: that of backward, and that which is reduced. With a param_dtype, `shared` has one
/// copy in it in addition. Each further NUMA node has one more copy. Rounding of uneven shards is left out,
/// and so is a reduce_dtype of another size. Throws ArgumentError for sizes below 1.
MemoryEstimate estimate_memory(const MemoryPlan& plan);

/// Prints the estimate as a table, whether it fits, and what would.
std::ostream& operator<<(std::ostream& stream, const MemoryEstimate& estimate);

}  // namespace lockstep
