// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <ostream>
#include <unordered_map>
#include <vector>

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/ones.h>

#include <lockstep/base/mutex.h>
#include <lockstep/nn/sync_batch_norm.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/non_member.h"
#include "intercept/composite_kernels.h"
#include "nn/synced_batch_norm.h"
#include "runtime/run.h"

namespace lockstep {

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& layer,
                                     const std::optional<ProcessGroup>& process_group,
                                     std::source_location where)
    : Base(layer), where_(where) {
  const CallerPlace place(where);
  set_process_group(process_group);
}

void SyncBatchNormImpl::set_process_group(const std::optional<ProcessGroup>& process_group) {
  comm::require_member(process_group, "SyncBatchNorm");
  group_ = process_group;
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() < 2) {
    throw_error<ArgumentError>("SyncBatchNorm: input has {} dimensions; it must be [N, C, ...]", input.dim());
  }
  if (input.size(1) != options.num_features()) {
    throw_error<ArgumentError>("SyncBatchNorm: input has {} channels, but num_features is {}", input.size(1),
                               options.num_features());
  }
  if (input.size(1) == 0) throw ArgumentError("SyncBatchNorm: input has no channels");
}

// Counts the batch. Without a momentum the running statistics are averages over all batches.
double SyncBatchNormImpl::next_momentum() {
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum()) return 1.0 / num_batches_tracked.item<double>();
  }
  return options.momentum().value_or(0.0);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  const CallerPlace place(where_);
  _check_input_dim(input);
  const double momentum = next_momentum();
  if (is_training()) {
    const auto group = runtime::group_or_default(group_, "SyncBatchNorm");
    if (group && group->size() > 1) {
      comm::refuse_with_python(comm::state_of(*group), "SyncBatchNorm", "use BatchNorm");
      return nn::synced_batch_norm(
          input, {.weight = weight, .bias = bias, .running_mean = running_mean, .running_var = running_var},
          momentum, options.eps(), *group);
    }
    nn::check_count(static_cast<double>(input.numel() / input.size(1)), input);
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        is_training() || !running_mean.defined(), momentum, options.eps(),
                        at::globalContext().userEnabledCuDNN());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  const auto momentum = options.momentum();
  stream << fmt::format("lockstep::SyncBatchNorm({}, eps={}, momentum={}, affine={}, track_running_stats={})",
                        options.num_features(), options.eps(),
                        momentum ? fmt::format("{}", *momentum) : "None", options.affine(),
                        options.track_running_stats());
}

}  // namespace lockstep

// convert_sync_batchnorm(). LibTorch's BatchNorm layers have no virtual forward(), so a layer that stays the
// same object cannot get another one. But its forward calls at::batch_norm with its own weight, and the
// kernel below finds the converted layer by that weight: one look-up per call once a layer has been
// converted. Safe from any thread.
namespace lockstep::nn {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct Layer {
  std::weak_ptr<torch::nn::Module> module;
  const Tensor* weight;  // the layer's member
  bool affine;
  std::optional<ProcessGroup> group;
  std::source_location where;  // of the conversion
};

struct Found {
  bool is_training;
  bool affine;
  std::optional<ProcessGroup> group;
  std::source_location where;
};

class Table {
 public:
  void add(const torch::nn::Module* module, Layer layer) {
    const WriterLock lock(mutex_);
    layers_.insert_or_assign(module, std::move(layer));
    index();
    used_.store(true, std::memory_order_release);
  }

  // The living layer that this weight belongs to, if any.
  std::optional<Found> find(const Tensor& weight) {
    if (!used_.load(std::memory_order_acquire)) return std::nullopt;
    {
      const ReaderLock lock(mutex_);
      if (const auto found = by_weight_.find(weight.unsafeGetTensorImpl()); found != by_weight_.end())
        if (auto layer = layer_with(*found->second, weight)) return layer;
      if (!has_replaced(weight)) return std::nullopt;
    }
    const WriterLock lock(mutex_);
    index();
    const auto found = by_weight_.find(weight.unsafeGetTensorImpl());
    return found == by_weight_.end() ? std::nullopt : layer_with(*found->second, weight);
  }

 private:
  // nullopt: the layer has another weight, and this one its address, or it is gone.
  static std::optional<Found> layer_with(const Layer& layer, const Tensor& weight) {
    const auto alive = layer.module.lock();
    if (!alive || !layer.weight->is_same(weight)) return std::nullopt;
    return Found{.is_training = alive->is_training(),
                 .affine = layer.affine,
                 .group = layer.group,
                 .where = layer.where};
  }

  // Whether a layer has got this weight since the last index().
  bool has_replaced(const Tensor& weight) const LOCKSTEP_REQUIRES_SHARED(mutex_) {
    return std::ranges::any_of(layers_,
                               [&](const auto& item) { return layer_with(item.second, weight).has_value(); });
  }

  // Weights of layers may have been replaced or exchanged.
  void index() LOCKSTEP_REQUIRES(mutex_) {
    std::erase_if(layers_, [](const auto& item) { return item.second.module.expired(); });
    by_weight_.clear();
    for (const auto& [module, layer] : layers_)
      if (const auto alive = layer.module.lock()) by_weight_[layer.weight->unsafeGetTensorImpl()] = &layer;
  }

  std::atomic<bool> used_{false};
  SharedMutex mutex_;
  std::unordered_map<const torch::nn::Module*, Layer> layers_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unordered_map<const void*, const Layer*> by_weight_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Never destroyed, like the kernel below.
Table& table() {
  static auto& layers = *new Table;
  return layers;
}

// The kernel of at::batch_norm: LibTorch's own except for converted layers in training.
Tensor batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                  const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                  double momentum, double eps, bool cudnn_enabled) {
  const auto layer = weight && weight->defined() ? table().find(*weight) : std::nullopt;
  const CallerPlace place(layer ? layer->where : std::source_location());
  const auto own_weight = layer && !layer->affine ? OptionalTensor() : weight;
  const auto group = layer && layer->is_training && training
                         ? runtime::group_or_default(layer->group, "SyncBatchNorm")
                         : std::nullopt;
  if (!group || group->size() == 1) {
    return at::native::batch_norm(input, own_weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  }
  return synced_batch_norm(input,
                           {.weight = own_weight.value_or(Tensor()),
                            .bias = bias.value_or(Tensor()),
                            .running_mean = running_mean.value_or(Tensor()),
                            .running_var = running_var.value_or(Tensor())},
                           momentum, eps, *group);
}

// Calls use(layer) if the module is a BatchNorm layer.
template <typename Module, typename Use>
void if_batch_norm(Module& module, const Use& use) {
  if (auto* const layer = module.template as<torch::nn::BatchNorm1d>()) use(*layer);
  if (auto* const layer = module.template as<torch::nn::BatchNorm2d>()) use(*layer);
  if (auto* const layer = module.template as<torch::nn::BatchNorm3d>()) use(*layer);
}

void convert_layer(const std::shared_ptr<torch::nn::Module>& module, const std::optional<ProcessGroup>& group,
                   std::source_location where) {
  if_batch_norm(*module, [&](auto& layer) {
    // A layer without a weight gets one for the look-up. It is no parameter, and nothing is multiplied by it.
    if (!layer.weight.defined()) layer.weight = at::ones({1});
    table().add(module.get(), {.module = module,
                               .weight = &layer.weight,
                               .affine = layer.options.affine(),
                               .group = group,
                               .where = where});
  });
}

std::optional<Found> find_converted(const torch::nn::Module& module) {
  std::optional<Found> converted;
  if_batch_norm(module, [&](const auto& layer) {
    if (layer.weight.defined()) converted = table().find(layer.weight);
  });
  return converted;
}

[[gnu::used]] const auto& batch_norm_kernel = intercept::replace_composite("batch_norm", batch_norm);

}  // namespace

std::vector<SyncedLayer> synced_layers(const torch::nn::Module& module) {
  std::vector<SyncedLayer> layers;
  const auto add_if_synced = [&](const std::string& name, const torch::nn::Module& layer) {
    const auto* const synced = layer.as<SyncBatchNorm>();
    const auto converted = find_converted(layer);
    if (synced == nullptr && !converted) return;
    layers.push_back({.name = name,
                      .buffers = layer.buffers(/*recurse=*/false),
                      .group = converted ? converted->group : synced->process_group()});
  };
  add_if_synced("the module itself", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add_if_synced(item.key(), *item.value());
  }
  return layers;
}

void convert_copy(const torch::nn::Module& module, const std::shared_ptr<torch::nn::Module>& copy) {
  if (const auto converted = find_converted(module)) convert_layer(copy, converted->group, converted->where);
  const auto from = module.modules(/*include_self=*/false);
  const auto to = copy->modules(/*include_self=*/false);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (const auto converted = find_converted(*from[i]))
      convert_layer(to.at(i), converted->group, converted->where);
  }
}

}  // namespace lockstep::nn

namespace lockstep {

void convert_sync_batchnorm(ModuleRef module, const std::optional<ProcessGroup>& process_group,
                            std::source_location where) {
  const CallerPlace place(where);
  comm::require_member(process_group, "convert_sync_batchnorm");
  auto layers = module->modules(/*include_self=*/false);
  if (const auto self = module->weak_from_this().lock()) {
    layers.push_back(self);
  } else if (layers.empty()) {
    throw ArgumentError("convert_sync_batchnorm: the layer must be in a shared_ptr or a holder");
  }
  for (const auto& layer : layers) {
    if (auto* const synced = layer->as<SyncBatchNorm>()) {
      synced->set_process_group(process_group);
    } else {
      nn::convert_layer(layer, process_group, where);
    }
  }
}

}  // namespace lockstep
