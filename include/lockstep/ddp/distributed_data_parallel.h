// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/comm_hooks.h>
#include <lockstep/ddp/join.h>
#include <lockstep/ddp/options.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/device/pytree.h>
#include <lockstep/nn/wrapped_module.h>

namespace lockstep {

/// A description of one bucket of gradients that are reduced together.
struct BucketInfo {
  std::int64_t bytes = 0;                    ///< bytes of the gradients
  std::vector<std::string> parameters = {};  ///< names in the wrapped module, in the order of the bucket
};

/// Statistics that DistributedDataParallel always keeps.
struct DdpStats {
  std::int64_t steps = 0;                ///< backward passes that were reduced
  StepTimes last = {};                   ///< of the last reduced step
  StepTimes mean = {};                   ///< of all reduced steps
  std::vector<BucketInfo> buckets = {};  ///< in the order in which they are reduced
  /// [rank]: the number of steps in which that rank was the last to start the final reduction, so that the
  /// others waited for it. All zero unless all ranks run on one host.
  std::vector<std::int64_t> arrived_last = {};
};

namespace ddp {
class DdpState;
struct BucketOrder;
}  // namespace ddp

/// While it lives, gradients accumulate on this rank only: the backward passes of forwards made in its scope
/// are not reduced. The first backward after it reduces the sum. Guards nest. PyTorch: `no_sync()`.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(bool& sync) : sync_(&sync), before_(std::exchange(sync, false)) {}
  ~NoSync() {
    if (sync_ != nullptr) *sync_ = before_;
  }
  NoSync(NoSync&& other) noexcept : sync_(std::exchange(other.sync_, nullptr)), before_(other.before_) {}
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  bool* sync_;
  bool before_;
};

/// The functions of DistributedDataParallel that do not depend on the type of the wrapped module.
class DistributedDataParallelModule : public nn::WrapperModule, public Joinable {
 public:
  /// The type of the guard that no_sync() returns.
  using NoSync = lockstep::NoSync;

  ~DistributedDataParallelModule() override;

  /// See NoSync. Must not outlive this module.
  NoSync no_sync() { return NoSync(sync_); }

  /// See Join. Must not outlive this module. PyTorch: `DistributedDataParallel.join()`.
  Join join(const JoinOptions& options = {}, std::source_location where = std::source_location::current()) {
    return Join({this}, options, where);
  }

  /// Replaces the averaging of buckets, before the first forward. See CommHook. PyTorch: `register_comm_hook`.
  void register_comm_hook(CommHook hook, std::source_location where = std::source_location::current());
  /// Takes PyTorch's first argument, for a hook that has no state: `register_comm_hook(nullptr, hook)`.
  void register_comm_hook(std::nullptr_t /*state*/, CommHook hook,
                          std::source_location where = std::source_location::current()) {
    register_comm_hook(std::move(hook), where);
  }
  /// Registers a hook with the caller's state: `register_comm_hook(&state, hook)`, or with a shared_ptr. The hook is
  /// called with it as it was passed, or as a `State&`; it owns a temporary. A pointer's object must outlive this module.
  template <typename State, typename Hook>
    requires ddp::detail::HookOf<Hook, State> &&
             (!std::is_lvalue_reference_v<State> || ddp::detail::kIsShared<State>)
  void register_comm_hook(State&& state, Hook hook,
                          std::source_location where = std::source_location::current()) {
    using Kept = std::remove_cvref_t<State>;
    register_comm_hook(
        [kept = Kept(std::forward<State>(state)),
         hook = std::move(hook)](GradBucket& bucket) mutable -> BucketWork {
          if constexpr (ddp::detail::Takes<Hook, Kept&>) {
            return std::invoke(hook, kept, bucket);
          } else {
            return std::invoke(hook, *kept, bucket);
          }
        },
        where);
  }
  template <typename State, typename Hook>
    requires ddp::detail::HookOf<Hook, State> && (!ddp::detail::kIsShared<State>)
  void register_comm_hook(State&, Hook, auto...) = delete;  // pass &state; the hook would change a copy

  /// The state dict of this module: names begin with "module.". PyTorch: `Module.state_dict`.
  Dict state_dict() const { return lockstep::state_dict(*this); }
  /// lockstep::load_state_dict() of this module. PyTorch: `Module.load_state_dict`.
  LoadReport load_state_dict(const Dict& state_dict, const LoadStateDictOptions& options = {},
                             std::source_location where = std::source_location::current()) {
    return lockstep::load_state_dict(*this, state_dict, options, where);
  }

  /// The wrapped module's parameters without those of params_and_buffers_to_ignore.
  std::vector<at::Tensor> averaged_parameters() const;

  /// The buckets in the order in which they are reduced. The forward after the first reduced backward (with
  /// static_graph the second) rebuilds them in the order in which gradients became ready; with
  /// find_unused_parameters they stay.
  std::vector<BucketInfo> buckets() const;

  /// Whether every gradient is the average over all ranks: false after a backward in no_sync(), one from a
  /// forward of the wrapped module itself, or one that failed.
  bool has_averaged_gradients() const;

  /// Times, buckets and late ranks since construction.
  DdpStats stats() const;

  /// See lockstep::trace().
  void trace(const std::string& path, int steps,
             std::source_location where = std::source_location::current());

  /// Gives all ranks the buffers of rank 0, as the next forward will, e.g. before an evaluation that calls
  /// the wrapped module. With broadcast_buffers = false it does nothing. Collective. PyTorch:
  /// `_sync_buffers`.
  void sync_buffers(std::source_location where = std::source_location::current());

  /// With optimizer_in_backward: the optimizers of the parameters that require gradients, in their order,
  /// e.g. for changing the learning rate between steps. Otherwise empty.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const;

  /// The group over which gradients are averaged.
  const ProcessGroup& process_group() const;

  void begin_join() override;
  void shadow_iteration() override;
  void finish_join(bool is_last_joiner) override;
  ProcessGroup join_process_group() const override { return process_group(); }
  c10::Device join_device() const override;

  /// Requires the default group, a communication hook without state (a plain function such as
  /// bf16_compress_hook, or none), no Join in progress, and no option that excludes an elastic run.
  void require_can_rejoin() const override;
  /// Drops the step that was in progress and all gradients, and builds the buckets anew in the order of
  /// construction; nothing is broadcast. Statistics begin again, and a trace() in progress is dropped. Throws
  /// DesyncError if the ranks' modules or options differ. After an error the next forward throws, until another
  /// rejoin() succeeds.
  void rejoin() override;

 protected:
  DistributedDataParallelModule(const std::shared_ptr<torch::nn::Module>& module,
                                const DistributedDataParallelOptions& options, std::source_location where);

  void before_forward();
  // Takes the tensors that forward returned; returns their replacements.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);
  bool watches_outputs() const { return watches_outputs_; }
  [[noreturn]] static void throw_unknown_output(const char* type);

  // Moves and casts an argument of forward as the options require.
  template <typename Argument>
  decltype(auto) prepared(Argument&& argument) const {
    return map_tensors(std::forward<Argument>(argument),
                       [this](const at::Tensor& tensor) { return prepare(tensor); });
  }

 private:
  friend class StepVerifier;
  friend struct ddp::BucketOrder;

  bool sync_ = true;
  at::Tensor prepare(const at::Tensor& argument) const;

  bool watches_outputs_;
  std::optional<c10::Device> device_;
  std::optional<at::ScalarType> input_dtype_;
  std::optional<c10::Device> output_device_;
  std::unique_ptr<ddp::DdpState> state_;
};

template <typename Wrapped>
class DistributedDataParallelImpl : public DistributedDataParallelModule {
 public:
  DistributedDataParallelImpl(std::shared_ptr<Wrapped> module, const DistributedDataParallelOptions& options,
                              std::source_location where)
      : DistributedDataParallelModule(module, options, where), module_(std::move(module)) {
    register_module("module", module_);
  }

  /// Calls the wrapped module's forward, with its argument and return types. Throws Error naming the
  /// parameters that took no part in the last backward. After a forward or backward that threw it first
  /// completes that step's calls, so that all ranks can continue; gradients in buckets become zero. Throws
  /// Error if the ranks cannot continue.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    before_forward();
    auto output = module_->forward(prepared(std::forward<Arguments>(arguments))...);
    using Output = decltype(output);
    if constexpr (PyTree<Output>) {
      if (watches_outputs()) {
        pass(output);
        return output;
      }
    } else {
      if (watches_outputs()) throw_unknown_output(typeid(Output).name());
    }
    after_forward({});
    return output;
  }

  /// The wrapped module. PyTorch: `.module`.
  const std::shared_ptr<Wrapped>& module() const { return module_; }

 private:
  template <typename Output>
  void pass(Output& output) {
    std::vector<at::Tensor> tensors;
    visit_tensors(output, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
    tensors = after_forward(std::move(tensors));
    std::size_t next = 0;
    visit_tensors(output, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
  }

  std::shared_ptr<Wrapped> module_;
};

/// Trains one module on all ranks of a group: averages gradients across the ranks, bucket by bucket, while
/// backward computes the others. PyTorch: `torch.nn.parallel.DistributedDataParallel`.
///
/// `Module` is a TORCH_MODULE holder or a shared_ptr of a module; it is deduced:
///
///     Net net;
///     lockstep::DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
///     torch::optim::SGD optimizer(ddp->parameters(), 1e-2);
///
/// Copies refer to the same module, as with every module holder. All ranks of the group call construction,
/// forward and backward in the same order. Construction throws ArgumentError for a module without parameters
/// that require gradients and for invalid options; DesyncError naming parameter, shapes and ranks if the
/// ranks' modules differ. backward() throws the errors of reductions, and DesyncError with the reason if
/// another rank's step failed. forward() follows changes of the module that all ranks make, such as frozen
/// layers and conversions, and throws ArgumentError for replaced parameters, DesyncError if the ranks'
/// changes differ: docs/ddp.md.
template <typename Module>
class DistributedDataParallel
    : public torch::nn::ModuleHolder<DistributedDataParallelImpl<typename nn::WrappedBy<Module>::type>> {
  using Impl = DistributedDataParallelImpl<typename nn::WrappedBy<Module>::type>;

 public:
  /// The type of the guard that no_sync() returns, for an `std::optional` of it.
  using NoSync = lockstep::NoSync;

  explicit DistributedDataParallel(const Module& module, const DistributedDataParallelOptions& options = {},
                                   std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(nn::WrappedBy<Module>::pointer(module), options, where)) {}

  /// forward(): `ddp(images)`.
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return this->ptr()->forward(std::forward<Arguments>(arguments)...);
  }
  /// WrapperModule::parameters(), without the arrow of a module holder.
  std::vector<at::Tensor> parameters() const { return this->ptr()->parameters(); }
  /// The parameters of the module with their names, which begin with "module.".
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const {
    return this->ptr()->named_parameters();
  }
  /// Sets the mode of training or of evaluation, without the arrow of a module holder.
  void train(bool on = true) { this->ptr()->train(on); }
  /// Switches the module to evaluation.
  void eval() { this->ptr()->eval(); }
  /// Sets the gradients of all parameters to zero or drops them, without the arrow of a module holder.
  void zero_grad(bool set_to_none = true) { this->ptr()->zero_grad(set_to_none); }
  /// The wrapped module, without the arrow of a module holder.
  auto module() const { return this->ptr()->module(); }
  /// DistributedDataParallelModule::no_sync(), without the arrow of a module holder.
  NoSync no_sync() { return this->ptr()->no_sync(); }
  /// DistributedDataParallelModule::join(), without the arrow of a module holder.
  Join join(const JoinOptions& options = {}, std::source_location where = std::source_location::current()) {
    return this->ptr()->join(options, where);
  }
  /// DistributedDataParallelModule::register_comm_hook(), without the arrow of a module holder.
  void register_comm_hook(CommHook hook, std::source_location where = std::source_location::current()) {
    this->ptr()->register_comm_hook(std::move(hook), where);
  }
  /// Registers a hook with its state, or with nullptr.
  template <typename State, typename Hook>
    requires(!std::same_as<Hook, std::source_location>)
  void register_comm_hook(State&& state, Hook hook,
                          std::source_location where = std::source_location::current()) {
    this->ptr()->register_comm_hook(std::forward<State>(state), std::move(hook), where);
  }
  /// DistributedDataParallelModule::state_dict(), without the arrow of a module holder.
  Dict state_dict() const { return this->ptr()->state_dict(); }
  /// DistributedDataParallelModule::load_state_dict(), without the arrow of a module holder.
  LoadReport load_state_dict(const Dict& state_dict, const LoadStateDictOptions& options = {},
                             std::source_location where = std::source_location::current()) {
    return this->ptr()->load_state_dict(state_dict, options, where);
  }
};

/// Records the next `steps` reduced steps on all ranks: forward, backward, each bucket's reduction and the
/// waits. At the forward after them rank 0 writes one Chrome trace (chrome://tracing, ui.perfetto.dev) of all
/// ranks to `path`. All ranks call it. Throws ArgumentError for an empty path, no steps, or while another
/// trace is active. That forward throws Error if the file cannot be written.
template <typename Module>
void trace(DistributedDataParallel<Module>& ddp, const std::string& path, int steps = 5,
           std::source_location where = std::source_location::current()) {
  ddp->trace(path, steps, where);
}

/// Makes every rank's parameters and buffers equal to those of rank `src`, as the construction of
/// DistributedDataParallel does, for training without it. Collective. Throws DesyncError on all ranks, before
/// anything is sent, if their modules differ in names, device types, dtypes, shapes or strides. PyTorch: a
/// loop of `dist.broadcast`. Default of `process_group`: the default group.
void broadcast_module(ModuleRef module, int src = 0,
                      const std::optional<ProcessGroup>& process_group = std::nullopt,
                      std::source_location where = std::source_location::current());

/// Sets requires_grad to false on the parameters whose names match, and returns their names. Call it before
/// DistributedDataParallel wraps the module. A pattern is the name of a parameter, or of a module for all of
/// its parameters; `*` matches any characters, `?` one. Throws ArgumentError for a pattern that matches
/// nothing.
///
///     lockstep::freeze(net, {"backbone", "layer?.*.bias"});
std::vector<std::string> freeze(ModuleRef module, const std::vector<std::string>& patterns,
                                std::source_location where = std::source_location::current());

/// Freezes the parameters that match none of the patterns, for fine-tuning: `freeze_all_but(net, {"fc"})`.
std::vector<std::string> freeze_all_but(ModuleRef module, const std::vector<std::string>& patterns,
                                        std::source_location where = std::source_location::current());

/// Scales all gradients so that their total norm is at most `max_norm`, and returns the norm before scaling
/// (see ClipGradNormOptions). Call it after the backward that reduces. It needs no communication: the
/// averaged gradients, and hence the norm, are equal on all ranks. Throws Error if the gradients are not
/// averaged (the last backward was in no_sync()) and with optimizer_in_backward, which leaves no gradients.
/// PyTorch: `torch.nn.utils.clip_grad_norm_`.
double clip_grad_norm_(DistributedDataParallelModule& ddp, double max_norm,
                       const ClipGradNormOptions& options = {},
                       std::source_location where = std::source_location::current());

/// Clamps each element of the gradients to [-clip_value, clip_value], under the same rules. Throws
/// ArgumentError if clip_value is negative or NaN, or if a gradient is complex. PyTorch:
/// `torch.nn.utils.clip_grad_value_`.
void clip_grad_value_(DistributedDataParallelModule& ddp, double clip_value,
                      std::source_location where = std::source_location::current());

template <typename Pointer>
  requires std::convertible_to<decltype(*std::declval<Pointer&>()), DistributedDataParallelModule&>
double clip_grad_norm_(Pointer&& ddp, double max_norm, const ClipGradNormOptions& options = {},
                       std::source_location where = std::source_location::current()) {
  return clip_grad_norm_(static_cast<DistributedDataParallelModule&>(*ddp), max_norm, options, where);
}

template <typename Pointer>
  requires std::convertible_to<decltype(*std::declval<Pointer&>()), DistributedDataParallelModule&>
void clip_grad_value_(Pointer&& ddp, double clip_value,
                      std::source_location where = std::source_location::current()) {
  clip_grad_value_(static_cast<DistributedDataParallelModule&>(*ddp), clip_value, where);
}

/// Clamps the gradients of a list of parameters: those that this rank has of parameters with parts on several
/// ranks. Throws as the function above does, and Error for gradients that should be averaged and are not.
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                      std::source_location where = std::source_location::current());

namespace nn {
namespace parallel {
using lockstep::DistributedDataParallel;
}
namespace utils {
using namespace torch::nn::utils;
using lockstep::clip_grad_norm_, lockstep::clip_grad_value_;
}  // namespace utils
}  // namespace nn

}  // namespace lockstep
