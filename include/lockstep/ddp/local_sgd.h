// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/ddp/comm_hooks.h>

namespace lockstep {

/// Options of PostLocalSGD under the names of PyTorch's `PostLocalSGDState`.
struct PostLocalSGDOptions {
  /// The ranks that average gradients after the first iterations, e.g. those of one host. Default: this rank
  /// alone, so that gradients stay local.
  std::optional<ProcessGroup> subgroup = std::nullopt;
  /// Iterations that average gradients over the whole group; at least 0.
  std::int64_t start_localSGD_iter = 0;
  /// False: gradients are not averaged after these iterations.
  bool post_local_gradient_allreduce = true;
};

/// A communication hook that averages gradients over the whole group in the first iterations, and over a
/// subgroup afterwards. PeriodicModelAverager averages the subgroups' parameters. Copies share their state.
/// PyTorch: `post_localSGD_hook`; Lin et al., Don't Use Large Mini-Batches, Use Local SGD (2018).
class PostLocalSGD {
 public:
  explicit PostLocalSGD(const PostLocalSGDOptions& options);
  BucketWork operator()(GradBucket& bucket) const;
  /// Iterations counted so far; stays at start_localSGD_iter.
  std::int64_t iteration() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Options of PeriodicModelAverager under PyTorch's names.
struct PeriodicModelAveragerOptions {
  std::int64_t period = 1;                                   ///< steps between two averagings; at least 1
  std::int64_t warmup_steps = 0;                             ///< steps before the first averaging
  std::optional<ProcessGroup> process_group = std::nullopt;  ///< default: the default group
};

/// Averages parameters over the ranks every `period` steps. PyTorch:
/// `torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager`.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  /// All ranks call it after each optimizer step. Averages those of the parameters that have a gradient.
  /// Throws DesyncError on all ranks, before a parameter is changed, if these are not the same on all.
  void average_parameters(const std::vector<at::Tensor>& parameters,
                          std::source_location where = std::source_location::current());
  /// The same for the optimizer's parameters.
  void average_parameters(const torch::optim::Optimizer& optimizer,
                          std::source_location where = std::source_location::current());

 private:
  bool is_due();
  void average(const std::vector<at::Tensor>& parameters, std::source_location where) const;

  PeriodicModelAveragerOptions options_;
  ProcessGroup group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
