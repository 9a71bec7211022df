// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/nn/wrapped_module.h>

// PyTorch: `torch.optim.swa_utils`. SWALR is in optim/lr_scheduler.h.
namespace lockstep::optim {

/// The average of a tensor and its next value. `num_averaged` is an int64 tensor without dimensions: the
/// number of values that `averaged` is of. PyTorch: the argument `avg_fn`.
using AverageFunction = std::function<at::Tensor(const at::Tensor& averaged, const at::Tensor& current,
                                                 const at::Tensor& num_averaged)>;
/// Averages in place, for lists of tensors of one device and dtype. PyTorch: the argument `multi_avg_fn`.
using MultiAverageFunction =
    std::function<void(const std::vector<at::Tensor>& averaged, const std::vector<at::Tensor>& current,
                       const at::Tensor& num_averaged)>;

/// Exponential moving average: `decay * averaged + (1 - decay) * current`. Throw ArgumentError for a decay
/// outside 0 to 1.
AverageFunction get_ema_avg_fn(double decay = 0.999);
/// Exponential averages: decay * average + (1 - decay) * value. PyTorch: `get_ema_multi_avg_fn`.
MultiAverageFunction get_ema_multi_avg_fn(double decay = 0.999);
/// The mean of all values.
AverageFunction get_swa_avg_fn();
/// Equally weighted averages of all values. PyTorch: `get_swa_multi_avg_fn`.
MultiAverageFunction get_swa_multi_avg_fn();

/// Options of AveragedModel, with PyTorch's names and defaults.
struct AveragedModelOptions {
  std::optional<c10::Device> device = {};  ///< of the averages; default: the model's
  AverageFunction avg_fn = {};             ///< default: the mean of all values
  MultiAverageFunction multi_avg_fn = {};  ///< instead of avg_fn
  bool use_buffers = false;                ///< averages buffers, too, instead of copying them
};

/// The functions of AveragedModel that do not depend on the type of the model.
class AveragedModelBase : public nn::WrapperModule {
 public:
  /// Takes the parameters of `model` into the average; the first call copies them. The model has the tensors
  /// of the copied one in the same order, such as a DistributedDataParallel around it. Throws ArgumentError
  /// otherwise.
  void update_parameters(ConstModuleRef model);
  /// The number of calls of update_parameters().
  const at::Tensor& n_averaged() const { return n_averaged_; }
  /// lockstep::state_dict() of this module. PyTorch: `Module.state_dict`.
  Dict state_dict() const { return lockstep::state_dict(*this); }
  /// lockstep::load_state_dict() of this module. PyTorch: `Module.load_state_dict`.
  LoadReport load_state_dict(const Dict& state_dict, const LoadStateDictOptions& options = {},
                             std::source_location where = std::source_location::current()) {
    return lockstep::load_state_dict(*this, state_dict, options, where);
  }

  /// It uses no process group.
  void require_can_rejoin() const override {}
  void rejoin() override {}

 protected:
  explicit AveragedModelBase(const AveragedModelOptions& options);
  /// A deep copy on the device of the options. Throws ArgumentError for a null pointer and for a module that
  /// cannot be cloned.
  std::shared_ptr<torch::nn::Module> copy_of(const std::shared_ptr<const torch::nn::Module>& model);

 private:
  AveragedModelOptions options_;
  std::shared_ptr<torch::nn::Module> copy_;
  at::Tensor n_averaged_;
};

template <typename Wrapped>
class AveragedModelImpl : public AveragedModelBase {
 public:
  AveragedModelImpl(const std::shared_ptr<Wrapped>& model, const AveragedModelOptions& options)
      : AveragedModelBase(options),
        module_(register_module("module", std::dynamic_pointer_cast<Wrapped>(copy_of(model)))) {}

  /// Calls the forward of the copy.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  /// The copy with the averages. PyTorch: `.module`.
  const std::shared_ptr<Wrapped>& module() const { return module_; }

 private:
  std::shared_ptr<Wrapped> module_;
};

/// A copy of a model whose parameters are averages of the model's (SWA or EMA). Names in the state dict are
/// Python's: "n_averaged" and "module.<name>". `Module` is a TORCH_MODULE holder or a shared_ptr of a module
/// with clone(); it is deduced. Copies refer to one module. PyTorch:
/// `torch.optim.swa_utils.AveragedModel`.
///
///     optim::AveragedModel ema(net, {.multi_avg_fn = optim::get_ema_multi_avg_fn(0.99)});
///     ema->update_parameters(net);  // after each step of the optimizer
///     auto output = ema->forward(images);
template <typename Module>
class AveragedModel
    : public torch::nn::ModuleHolder<AveragedModelImpl<typename nn::WrappedBy<Module>::type>> {
  using Impl = AveragedModelImpl<typename nn::WrappedBy<Module>::type>;

 public:
  /// Throws ArgumentError for an empty module, for one that cannot be cloned (derive it and its submodules
  /// from torch::nn::Cloneable), and for both avg_fn and multi_avg_fn.
  explicit AveragedModel(const Module& model, const AveragedModelOptions& options = {})
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(nn::WrappedBy<Module>::pointer(model), options)) {}

  /// AveragedModelBase::update_parameters(), without the arrow of a module holder.
  void update_parameters(ConstModuleRef model) { this->ptr()->update_parameters(model); }
  /// forward(): `ema(images)`.
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return this->ptr()->forward(std::forward<Arguments>(arguments)...);
  }
  /// AveragedModelImpl::forward(), without the arrow of a module holder.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    return this->ptr()->forward(std::forward<Arguments>(arguments)...);
  }
  /// The copy with the averages, without the arrow of a module holder.
  auto module() const { return this->ptr()->module(); }
  /// AveragedModelBase::state_dict(), without the arrow of a module holder.
  Dict state_dict() const { return this->ptr()->state_dict(); }
  /// AveragedModelBase::load_state_dict(), without the arrow of a module holder.
  LoadReport load_state_dict(const Dict& state_dict, const LoadStateDictOptions& options = {},
                             std::source_location where = std::source_location::current()) {
    return this->ptr()->load_state_dict(state_dict, options, where);
  }
  /// The parameters of the copy, each once: WrapperModule::parameters().
  std::vector<at::Tensor> parameters() const { return this->ptr()->parameters(); }
  /// Sets the mode of training or of evaluation, without the arrow of a module holder.
  void train(bool on = true) { this->ptr()->train(on); }
  /// Switches the module to evaluation.
  void eval() { this->ptr()->eval(); }
};

/// Makes the BatchNorm layers of a module, SyncBatchNorm included, collect statistics anew as plain means
/// over batches, in training mode. The destructor restores momentum and mode.
class BatchNormUpdate {
 public:
  explicit BatchNormUpdate(ModuleRef module);
  ~BatchNormUpdate();
  BatchNormUpdate(const BatchNormUpdate&) = delete;
  BatchNormUpdate& operator=(const BatchNormUpdate&) = delete;
  /// Whether the module has batch norms.
  bool has_layers() const { return !restore_.empty(); }

 private:
  torch::nn::Module& module_;
  bool was_training_;
  std::vector<std::function<void()>> restore_;
};

/// The input of a batch: the batch itself, its member `data`, or its first element.
template <typename Batch>
at::Tensor input_of(const Batch& batch) {
  if constexpr (std::convertible_to<const Batch&, at::Tensor>) {
    return batch;
  } else if constexpr (requires { batch.data.defined(); }) {
    return batch.data;
  } else if constexpr (requires { std::get<0>(batch); }) {
    return std::get<0>(batch);
  } else {
    return *std::begin(batch);
  }
}

/// Computes the running statistics of the BatchNorm layers over one pass of `loader`, a range of batches.
/// Does nothing without such layers. PyTorch: `torch.optim.swa_utils.update_bn`.
template <typename Loader, typename Holder>
void update_bn(Loader&& loader, Holder& model, std::optional<c10::Device> device = std::nullopt) {
  const c10::NoGradGuard no_grad;
  const BatchNormUpdate update(*model);
  if (!update.has_layers()) return;
  for (const auto& batch : loader) {
    const auto input = input_of(batch);
    model->forward(device ? input.to(*device) : input);
  }
}

}  // namespace lockstep::optim

/// The names of `torch.optim.swa_utils`.
namespace lockstep::optim::swa_utils {
using optim::AveragedModel, optim::get_ema_avg_fn, optim::get_ema_multi_avg_fn, optim::get_swa_avg_fn,
    optim::get_swa_multi_avg_fn, optim::update_bn;
}  // namespace lockstep::optim::swa_utils
