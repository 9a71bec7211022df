// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/ddp/comm_hook.h>
#include <lockstep/ddp/join.h>
#include <lockstep/ddp/options.h>
#include <lockstep/ddp/stats.h>
#include <lockstep/device/find_tensors.h>
#include <lockstep/nn/wrapped_module.h>

namespace lockstep {

namespace ddp {
class Replica;
}

/// While it lives, backward passes of forwards made in its scope add up gradients on this rank only; the
/// first backward after it reduces the sum. Guards nest. PyTorch: `DistributedDataParallel.no_sync()`.
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

/// The part of DistributedDataParallel that does not depend on the type of the wrapped module.
class DistributedDataParallelModule : public torch::nn::Module, public Joinable {
 public:
  ~DistributedDataParallelModule() override;

  /// See NoSync. Must not outlive this module.
  NoSync no_sync() { return NoSync(sync_); }

  /// See Join. Must not outlive this module. PyTorch: `DistributedDataParallel.join()`.
  Join join(const JoinOptions& options = {}) { return Join({this}, options); }

  /// Replaces the averaging of buckets; once, before the first forward. See CommHook. PyTorch:
  /// `register_comm_hook`.
  void register_comm_hook(CommHook hook);

  /// Parameters of the wrapped module, each once even when modules share it, as in Python (LibTorch's own
  /// function repeats shared ones, and an optimizer would then step them twice).
  std::vector<at::Tensor> parameters() const;
  /// The same with names, which begin with "module.".
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;

  /// The wrapped module's parameters without those of params_and_buffers_to_ignore.
  std::vector<at::Tensor> averaged_parameters() const;

  /// The buckets in the order in which they are reduced. They are laid out anew, by the order in which
  /// gradients became ready, at the forward that follows the first reduced backward (of a static graph the
  /// second; with find_unused_parameters never).
  std::vector<BucketInfo> buckets() const;

  /// Whether the gradients are the averages of all ranks: false after a backward in no_sync(), or one that
  /// did not come to its end.
  bool has_averaged_gradients() const;

  /// Times, buckets and stragglers since construction.
  DdpStats stats() const;

  /// See lockstep::trace().
  void trace(const std::string& path, int steps);

  /// With optimizer_in_backward: the optimizer of each parameter that requires gradients, in their order, for
  /// changing e.g. the learning rate between steps. Otherwise empty.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const;

  const ProcessGroup& process_group() const;

  void check_join() const override;
  void shadow_iteration() override;
  void finish_join(bool is_last_joiner) override;
  ProcessGroup join_process_group() const override { return process_group(); }
  c10::Device join_device() const override;

 protected:
  DistributedDataParallelModule(const std::shared_ptr<torch::nn::Module>& module,
                                const DistributedDataParallelOptions& options, std::source_location where);

  void before_forward();
  // `outputs`: the tensors that forward returned; those to return in their place.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);
  bool watches_outputs() const { return watches_outputs_; }
  [[noreturn]] static void refuse_output(const char* type);

  // Arguments as forward gets them: on the device and in the type that the options ask for.
  template <typename Argument>
  decltype(auto) prepared(Argument&& argument) const {
    using Plain = std::remove_cvref_t<Argument>;
    if constexpr (std::same_as<Plain, at::Tensor>) {
      return prepare(argument);
    } else if constexpr (device::Findable<Plain> && !device::HoldsNone<Plain> &&
                         std::copy_constructible<Plain>) {
      Plain copy = std::forward<Argument>(argument);
      visit_tensors(copy, [this](at::Tensor& tensor) { tensor = prepare(tensor); });
      return copy;
    } else {
      return std::forward<Argument>(argument);
    }
  }

 private:
  bool sync_ = true;
  at::Tensor prepare(const at::Tensor& argument) const;

  bool watches_outputs_;
  std::optional<c10::Device> device_;
  std::optional<at::ScalarType> input_dtype_;
  std::optional<c10::Device> output_device_;
  std::unique_ptr<ddp::Replica> replica_;
};

template <typename Wrapped>
class DistributedDataParallelImpl : public DistributedDataParallelModule {
 public:
  DistributedDataParallelImpl(std::shared_ptr<Wrapped> module, const DistributedDataParallelOptions& options,
                              std::source_location where)
      : DistributedDataParallelModule(module, options, where), module_(std::move(module)) {
    register_module("module", module_);
  }

  /// Takes and returns what the wrapped module's forward does. Throws Error when parameters took no part in
  /// the last backward, naming them; after a backward that an exception ended it first brings the ranks
  /// together again, and gradients that lie in buckets are zero.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    before_forward();
    auto output = module_->forward(prepared(std::forward<Arguments>(arguments))...);
    using Output = decltype(output);
    if constexpr (device::Findable<Output>) {
      if (watches_outputs()) {
        pass(output);
        return output;
      }
    } else {
      if (watches_outputs()) refuse_output(typeid(Output).name());
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

/// Trains one module on all ranks of a group: gradients are averaged across the ranks, bucket by bucket,
/// while backward is still computing the others. PyTorch: `torch.nn.parallel.DistributedDataParallel`.
///
/// `Module` is a TORCH_MODULE holder or a shared_ptr of a module; it is deduced:
///
///     Net net;
///     lockstep::DistributedDataParallel ddp(net, {.device = context.device()});
///     torch::optim::SGD optimizer(ddp->parameters(), 1e-2);
///
/// A value like every module holder. Construction, forward and backward are made by all ranks of the group in
/// the same order. Throws ArgumentError for a module without parameters that require gradients and for
/// options that are refused; DesyncError when the ranks' modules differ, naming parameter, shapes and ranks.
/// Failures of a reduction come out of backward().
template <typename Module>
class DistributedDataParallel
    : public torch::nn::ModuleHolder<DistributedDataParallelImpl<typename nn::WrappedBy<Module>::type>> {
  using Impl = DistributedDataParallelImpl<typename nn::WrappedBy<Module>::type>;

 public:
  explicit DistributedDataParallel(const Module& module, const DistributedDataParallelOptions& options = {},
                                   std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(nn::WrappedBy<Module>::pointer(module), options, where)) {}
};

}  // namespace lockstep
