// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/device/device.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/device/pytree.h>
#include <lockstep/nn/wrapped_module.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

namespace fsdp {
class ParameterGroup;
struct Entries;
struct ForwardPolicy;
}  // namespace fsdp

/// The types of parameters and gradients between steps of the optimizer, which always steps shards of the
/// original type. Modules of LibTorch have no hooks: FSDPModule::forward() converts the inputs and outputs of
/// the module, and `module->forward()` does not. PyTorch: `MixedPrecisionPolicy`.
struct MixedPrecisionPolicy {
  /// The parameters' dtype in forward and backward; default: their own.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// The dtype in which gradients of several backward passes are added, and all are reduced. Default: the
  /// parameters' own dtype, as in PyTorch 2.15; earlier releases take param_dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// The dtype of floating tensors that forward returns; default: the module's own. The first use of the
  /// module's parameters is an Error unless FSDPModule::forward() was called before. Later calls of
  /// `module->forward()` return what the module computes.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Whether forward gets floating tensors as param_dtype.
  bool cast_forward_inputs = true;
};

/// Shards, their gradients and the optimizer's states lie in memory of the host. PyTorch:
/// `CPUOffloadPolicy`.
struct CPUOffloadPolicy {
  /// Whether the shards lie in page-locked memory, from which copies to the device overlap its work.
  bool pin_memory = true;
};

/// Options of fully_shard().
struct FullyShardOptions {
  /// One dimension: the ranks that the parameters are distributed over. Two: the second is that, and the
  /// first has replicas (HSDP). Default: the default group.
  std::optional<DeviceMesh> mesh = std::nullopt;
  /// Whether parameters are freed between forward and backward. Default: true, but false for the outermost
  /// module. A number, which divides that of the ranks: between forward and backward so many consecutive
  /// ranks have the parameters together, each an equal part, so that backward gathers from near ranks. 1 is
  /// false, and all ranks is true. Has no effect on shared parameters, which are never gathered.
  std::optional<std::variant<bool, int>> reshard_after_forward = std::nullopt;
  /// Called for each parameter that the call takes. Returns the dimension that is distributed, as
  /// `tensor::Shard(dim)`, or nullopt for dimension 0. The size of a dimension other than 0 must be a
  /// multiple of the number of ranks. With shared memory such a shard has memory of its own, which the rank
  /// copies into the shared copy after the optimizer's step.
  std::function<std::optional<tensor::Placement>(const at::Tensor&)> shard_placement_fn = {};
  MixedPrecisionPolicy mp_policy = {};  ///< dtypes of computation, reduction and outputs
  /// For parameters on a device other than the CPU: they are copied there before they are gathered, and the
  /// gradients of shards are copied to the host after they are reduced. Parameters on the CPU are not
  /// affected. (PyTorch needs pin_memory = false for these where there is no accelerator.) Default: shards
  /// lie on their parameter's device.
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Parameters that stay as they are, and whose gradients are not reduced.
  std::vector<at::Tensor> ignored_params = {};
  /// Whether the ranks of one host share one copy of the parameters, instead of gathering them (backend shm).
  /// On several hosts (backend hierarchical): whether the ranks of a host gather into memory that they share.
  /// That needs equally many ranks on each host, more than one. A number in reshard_after_forward of at most
  /// these ranks then means that a host keeps its copy until backward. An elastic::run() needs false. Default: if
  /// it is possible.
  std::optional<bool> share_memory = std::nullopt;
};

/// The calls of one group of fully_shard(), and the time that this rank waits for them, in milliseconds.
struct FsdpTraffic {
  std::int64_t gathers = 0;         ///< number of gathers of parameters
  std::int64_t gathered_bytes = 0;  ///< of the whole parameters, with padding
  double gather_wait = 0;           ///< ms for which computation waited for gathers
  std::int64_t reductions = 0;      ///< number of reductions of gradients
  std::int64_t reduced_bytes = 0;   ///< of the whole gradients, with padding
  double reduction_wait = 0;        ///< with that for the replicas
};

/// Statistics that an FSDPModule always keeps.
struct FsdpStats {
  /// Parameters that are gathered, reduced and freed as one.
  struct Group {
    std::vector<std::string> parameters = {};  ///< names in the module
    FsdpTraffic last = {};                     ///< in the last step
    FsdpTraffic total = {};                    ///< also in forwards without backward
  };

  std::int64_t steps = 0;  ///< backward passes that were reduced
  /// As for DistributedDataParallel: communication is that of gradients, with the barrier of shared memory.
  /// forward lasts from the first use of a parameter after the last backward, with gradients enabled, to the
  /// first gradient. Waits for gathers are parts of forward and backward.
  StepTimes last = {};
  StepTimes mean = {};  ///< of all steps
  /// For shared parameters: the wait for all ranks between steps, in milliseconds.
  double barrier_wait_last = 0;
  double barrier_wait_total = 0;   ///< ms, the sum over all steps
  std::vector<Group> groups = {};  ///< in the order of their first parameters
};

/// The gathering that FSDPModule::unshard_async() has started. PyTorch: `UnshardHandle`.
class UnshardHandle {
 public:
  /// Returns when the parameters are there. Operators that use them wait by themselves. Collective. Later
  /// calls do nothing.
  void wait();

 private:
  friend class FSDPModule;
  std::shared_ptr<fsdp::ParameterGroup> group_;
};

/// A module whose parameters are distributed by fully_shard(). Copies refer to the same state, which lives as
/// long as the module's parameters. PyTorch: `FSDPModule`.
class FSDPModule {
 public:
  /// A parameter of the module and its name.
  struct NamedParameter {
    std::string name;      ///< in the module
    at::Tensor parameter;  ///< this rank's rows; a leaf
  };

  /// Calls the module's forward with the conversions of MixedPrecisionPolicy:
  ///
  ///     const MixedPrecisionPolicy policy{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
  ///     auto sharded = fully_shard(net, {.mp_policy = policy});
  ///     auto loss = F::cross_entropy(sharded.forward(net, x), target);
  ///
  /// `module` is the holder or shared_ptr of the module that was given to fully_shard(). Tensors within the
  /// arguments and the result are converted if TensorVisitor visits them. The caller's arguments stay as they
  /// are, except for tensors behind a shared_ptr, which are replaced. Throws ArgumentError for another
  /// module, and for a result without a TensorVisitor if output_dtype is set.
  template <typename Module, typename... Arguments>
  auto forward(const Module& module, Arguments&&... arguments) const {
    const auto wrapped = nn::WrappedBy<Module>::pointer(module);
    begin_forward(wrapped.get());
    auto output = wrapped->forward(map_tensors(
        std::forward<Arguments>(arguments), [this](const at::Tensor& tensor) { return input(tensor); })...);
    if constexpr (PyTree<decltype(output)>) {
      visit_tensors(output, [this](at::Tensor& tensor) { tensor = this->output(tensor); });
    } else {
      refuse_output(typeid(output).name());
    }
    return output;
  }

  /// Does not compile: this object does not know the type of the module.
  template <typename... Arguments>
  void operator()(const Arguments&... /*arguments*/) const {
    static_assert(sizeof...(Arguments) > 1000,
                  "call the module, net->forward(x), or with a MixedPrecisionPolicy sharded.forward(net, x)");
  }

  /// This rank's rows of all parameters of the module and its children, for optimizers: `[rows, ...]`, where
  /// rank r has rows r * ceil(n / size) and on, so that the last ranks may have fewer rows or none. With
  /// shard_placement_fn the rows are those of another dimension; the tensors are contiguous. After a
  /// backward `.grad` has the gradients' mean over the ranks. Ignored parameters are whole.
  std::vector<at::Tensor> parameters() const;
  /// The parameters of the module with their names; this rank's rows of each.
  std::vector<NamedParameter> named_parameters() const;

  /// Undefines all gradients, as the optimizer's zero_grad() does, and forgets those that
  /// set_requires_all_reduce() keeps. `module->zero_grad()` undefines gradients at the next backward.
  void zero_grad();
  /// Gathers the module's own parameters now, e.g. for code that reads them by data_ptr(); operators that use
  /// parameters do so by themselves. They stay until an operator has used them, or reshard(). Collective.
  void unshard() const;
  /// Starts unshard() and does not wait, e.g. for a module that is used later. Call it after the optimizer's step.
  /// PyTorch: `unshard(async_op=True)`.
  UnshardHandle unshard_async() const;
  /// Frees the module's gathered parameters. With shared parameters, returns when no rank reads them any
  /// more, which makes it safe to change shards outside of an optimizer's step after backward. Collective.
  void reshard() const;

  /// Whether backward reduces gradients. Without, they accumulate in the module's parameters. PyTorch: the
  /// same, and DDP's `no_sync()`.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true);
  /// Whether backward also reduces gradients over the replicas of a mesh with two dimensions. Without, it
  /// reduces them over the shards only and keeps the result, which the next backward that reduces over the
  /// replicas adds. These backward passes have gradients of the same parameters, otherwise they throw
  /// ArgumentError. set_requires_gradient_sync() sets this, too. PyTorch: the same.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true);
  /// The gradients of this module's own parameters become the sum over the ranks divided by `factor`, instead
  /// of the mean. Throws ArgumentError unless it is positive and finite. PyTorch: the same.
  void set_gradient_divide_factor(double factor);
  /// Whether parameters are freed during backward when their gradients are ready.
  void set_reshard_after_backward(bool reshard_after_backward, bool recurse = true);
  /// The option of fully_shard() for the following passes, without a number.
  void set_reshard_after_forward(bool reshard_after_forward, bool recurse = true);

  /// The modules whose parameters are gathered ahead when forward uses this module's, in this order. Without
  /// them it is the module that the last step used next; an empty list restores this default. The same on all
  /// ranks. Call it after fully_shard() of the module that has all of them. Throws ArgumentError otherwise.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules,
                                       std::source_location where = std::source_location::current());
  /// The modules whose parameters are gathered ahead when backward uses this module's, in this order.
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules,
                                        std::source_location where = std::source_location::current());

  /// Whether the ranks share one copy of the parameters, which is never freed.
  bool shares_memory() const;

  /// Times and bytes since construction, or since an elastic::run() has returned to a commit. The times are those of
  /// the outermost module's steps.
  FsdpStats stats() const;
  /// See lockstep::trace().
  void trace(const std::string& path, int steps) const;

  /// get_model_state_dict() and set_model_state_dict(), for TrainingState.
  Dict state_dict(std::source_location where = std::source_location::current()) const;
  /// set_model_state_dict(), for TrainingState.
  void load_state_dict(const Dict& state_dict,
                       std::source_location where = std::source_location::current()) const;

  /// The module that fully_shard() was called for. Throws ArgumentError if no shared_ptr owns it.
  std::shared_ptr<torch::nn::Module> module() const;

  /// That of a module which fully_shard() has sharded, or nullopt. PyTorch: `isinstance(module, FSDPModule)`.
  static std::optional<FSDPModule> find(ConstModuleRef module);

 private:
  friend FSDPModule fully_shard(ModuleRef module, const FullyShardOptions& options,
                                std::source_location where);
  friend fsdp::Entries;

  struct Entry {
    std::string name;
    std::shared_ptr<fsdp::ParameterGroup> group = {};  // none: ignored
    std::size_t index = 0;
    at::Tensor ignored = {};
    std::optional<ProcessGroup> expert_ranks = {};  // each with other experts
  };

  void set_entries(const torch::nn::Module& module);
  void begin_forward(const torch::nn::Module* module) const;
  at::Tensor input(const at::Tensor& tensor) const;
  at::Tensor output(const at::Tensor& tensor) const;
  void refuse_output(const char* type) const;
  std::vector<std::weak_ptr<fsdp::ParameterGroup>> groups_to_prefetch(const std::vector<FSDPModule>& modules,
                                                                      const char* function,
                                                                      std::source_location where) const;
  std::vector<std::shared_ptr<fsdp::ParameterGroup>> groups(bool recurse) const;

  std::vector<Entry> entries_;
  std::weak_ptr<const torch::nn::Module> module_;  // expired: it is in no shared_ptr
  std::vector<NamedParameter> buffers_;            // of the call of fully_shard()
  std::map<std::string, std::string> aliases_;     // other names of tied tensors, each with the first
  std::shared_ptr<fsdp::ParameterGroup> own_;
  std::shared_ptr<fsdp::ForwardPolicy> forward_;
};

/// Distributes the parameters of a module over the ranks of a group: each rank has 1 / size() of the
/// parameters, gradients and optimizer states. ZeRO stage 3; PyTorch: `torch.distributed.fsdp.fully_shard`.
///
///     for (auto& layer : *net->layers) fully_shard(layer);
///     auto sharded = fully_shard(net);
///     torch::optim::AdamW optimizer(sharded.parameters(), 1e-3);
///
/// Each call forms one group of the parameters that earlier calls on child modules did not take. A group is
/// gathered, reduced and freed as one; call it from the innermost modules to the outermost, and in the same
/// order on all ranks. The module's code and its parameters' names and shapes stay as they are: its
/// parameters are whole whenever an operator uses them, in forward and in backward. Do not give them to an
/// optimizer; they have no gradients after backward, and an optimizer or clip function that reads one is an
/// Error.
///
/// With shared memory no parameter is gathered: every rank computes with one copy for all ranks of the host,
/// of which the optimizer of each rank changes its rows. Each NUMA node has a copy if the host has several
/// nodes and every rank is bound to the cores of one. Ranks then write their rows to the other copies after
/// the optimizer's step. LOCKSTEP_NUMA_NODE sets a rank's node by hand. Change shards only between a backward
/// and the next forward, or after reshard(). If a rank dies, the parameters may have rows of two steps; every
/// later use is an Error, and the run continues from a checkpoint.
///
/// The module may be one that parallelize_module() changed for another dimension of the mesh: each rank then
/// has rows of its parts. Experts of MixtureOfExperts that lie on several ranks are distributed over the
/// ranks that have the same ones, in a call before that for the rest:
///
///     fully_shard(moe->experts, {.mesh = mesh["dp"]});
///     auto sharded = fully_shard(net);
///
/// Parameters on device meta stay there, and so do their rows, until to_empty(): no rank needs memory for the
/// whole module.
///
/// Parameters are dense, contiguous and of one dimension or more; those that require gradients have one dtype
/// per group. All ranks make the same calls with the same shapes and start with the same values. Operators
/// may not write to the module's parameters. Collective. Throws ArgumentError, naming the parameter and the
/// caller's line, and DesyncError on every rank if the ranks' parameters or options differ, naming the first
/// difference.
FSDPModule fully_shard(ModuleRef module, const FullyShardOptions& options = {},
                       std::source_location where = std::source_location::current());

/// Records the next `steps` reduced steps of the outermost module on all ranks: forward, backward, each
/// group's gathers and reductions, and the waits. At the first use of a parameter after them rank 0 writes
/// one Chrome trace (chrome://tracing, ui.perfetto.dev) of the ranks that the parameters are distributed over
/// to `path`; with replicas, of the first. All ranks call it. Throws ArgumentError for an empty path, no
/// steps, a module without sharded parameters, or while another trace is active. That use throws Error if the
/// file cannot be written.
inline void trace(const FSDPModule& module, const std::string& path, int steps = 5) {
  module.trace(path, steps);
}

/// Options of to_empty().
struct ToEmptyOptions {
  DeviceId device = c10::kCPU;  ///< where the memory is allocated
  /// Initializes the parameters and buffers that a module registers itself, which are whole and ordinary
  /// tensors during the call. Called on all ranks for each module that has such tensors on device meta,
  /// children first. All ranks set the same values; of a parameter each keeps its rows. Default: the values
  /// are unspecified, for a state dict that is loaded next. PyTorch: `param_init_fn`.
  std::function<void(torch::nn::Module&)> param_init_fn = {};
};

/// Gives the parameters and buffers of a module that are on device meta memory on another device: of a
/// sharded parameter this rank's rows only. Optimizers of the rows stay valid. After an error, every use of the
/// module's parameters throws. Collective. PyTorch: `torch.nn.Module.to_empty`.
///
///     std::optional<DeviceContext> meta("meta");
///     Net net;
///     meta.reset();
///     for (auto& layer : *net->layers) fully_shard(layer);
///     auto sharded = fully_shard(net);
///     to_empty(net);
///     auto weights = get_model_state_dict(sharded);
///     distributed_checkpoint::load(weights, folder);
void to_empty(ModuleRef module, const ToEmptyOptions& options = {},
              std::source_location where = std::source_location::current());
/// Takes the device alone: `to_empty(net, "cuda")`.
template <std::convertible_to<DeviceId> Device>
void to_empty(ModuleRef module, const Device& device,
              std::source_location where = std::source_location::current()) {
  to_empty(module, ToEmptyOptions{.device = device}, where);
}

/// Scales the gradients of all shards of the module so that their norm over all ranks is at most `max_norm`.
/// Returns the norm before, computed in float64, with the same bits on all ranks. Collective. Ignored
/// parameters do not count. Experts of all ranks count. See ClipGradNormOptions. To clamp each element, call
/// `torch::nn::utils::clip_grad_value_(module.parameters(), value)`.
/// PyTorch: `torch.nn.utils.clip_grad_norm_`.
double clip_grad_norm_(const FSDPModule& module, double max_norm, const ClipGradNormOptions& options = {},
                       std::source_location where = std::source_location::current());
/// Scales the gradients of any module, e.g. one that parallelize_module() changed or with MixtureOfExperts.
/// Call it after the reduction of DistributedDataParallel. A module whose parameters are all whole needs no
/// communication, and its norm has PyTorch's bits.
double clip_grad_norm_(ModuleRef module, double max_norm, const ClipGradNormOptions& options = {},
                       std::source_location where = std::source_location::current());
/// Scales the gradients of a list of parameters, of DistributedDataParallel, fully_shard(), parallelize_module() or an
/// ordinary module: `net->parameters()`, `sharded.parameters()` or a part of either. The whole gradient of a distributed
/// parameter counts. All ranks pass the same parameters in the same order; the stages of a pipeline, which
/// have others, each get the norm of their own. Throws ArgumentError if the process has a MixtureOfExperts whose experts are on several ranks, because a list does not say which of its
/// parameters are theirs: pass the module.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       const ClipGradNormOptions& options = {},
                       std::source_location where = std::source_location::current());

namespace nn::utils {
using lockstep::clip_grad_norm_;  // the three above
}

}  // namespace lockstep
