// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <unordered_set>

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/nn/swa_utils.h>
#include <lockstep/nn/sync_batch_norm.h>

#include "base/throw_error.h"
#include "nn/module_copy.h"
#include "nn/synced_batch_norm.h"

namespace lockstep::optim {
namespace {

using AveragedTensors = std::vector<at::Tensor>;

void check_decay(double decay) {
  if (!(decay >= 0 && decay <= 1)) throw_error<ArgumentError>("decay = {}; give 0 to 1", decay);
}

bool is_inexact(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

using NamedAverages = torch::OrderedDict<std::string, at::Tensor>;

// Tied ones with all of their names.
NamedAverages parameters_and_buffers(const torch::nn::Module& module, bool with_buffers) {
  auto tensors = module.torch::nn::Module::named_parameters();
  if (with_buffers) tensors.update(module.named_buffers());
  return tensors;
}

// The names in one of them may begin with "module.", as those of a DistributedDataParallel do.
bool are_alike(const std::string& one, const std::string& other) {
  const auto& longer = one.size() < other.size() ? other : one;
  const auto& shorter = one.size() < other.size() ? one : other;
  return longer == shorter || longer.ends_with("." + shorter);
}

[[noreturn]] void refuse_average(const std::string& name, const std::string& what) {
  throw_error<ArgumentError>(
      "AveragedModel: {} {}; the model has to keep the tensors of the copied one: construct a new "
      "AveragedModel of the changed model",
      name, what);
}

void check_same_names(const NamedAverages& averaged, const NamedAverages& current) {
  for (std::size_t i = 0; i < std::max(averaged.size(), current.size()); ++i) {
    if (i >= averaged.size()) refuse_average(current[i].key(), "is in the model, but not in the average");
    const auto& [name, tensor] = averaged[i].pair();
    if (i >= current.size() || !are_alike(name, current[i].key()))
      refuse_average(name, "of the average has no counterpart in its place in the model");
    const auto& now = current[i].value();
    if (tensor.sizes() == now.sizes()) continue;
    refuse_average(name, fmt::format("has the shape [{}] in the average and [{}] in the model",
                                     fmt::join(tensor.sizes(), ", "), fmt::join(now.sizes(), ", ")));
  }
}

// Tensors of the average and of the model.
struct Pairs {
  AveragedTensors averaged;
  AveragedTensors current;
};

// Each tensor of the average once. The average keeps its dtypes and devices.
Pairs pairs_of(const NamedAverages& averaged, const NamedAverages& current) {
  check_same_names(averaged, current);
  Pairs pairs;
  std::unordered_set<const void*> known;
  for (std::size_t i = 0; i < averaged.size(); ++i) {
    const auto& average = averaged[i].value();
    if (!known.insert(average.unsafeGetTensorImpl()).second) continue;
    pairs.averaged.push_back(average.detach());
    pairs.current.push_back(current[i].value().detach().to(average.device(), average.scalar_type()));
  }
  return pairs;
}

// One per device and dtype, as multi_avg_fn takes them.
std::vector<Pairs> kernel_groups(const Pairs& pairs) {
  std::map<std::pair<std::string, at::ScalarType>, Pairs> groups;
  for (std::size_t i = 0; i < pairs.averaged.size(); ++i) {
    const auto& averaged = pairs.averaged[i];
    auto& group = groups[{averaged.device().str(), averaged.scalar_type()}];
    group.averaged.push_back(averaged);
    group.current.push_back(pairs.current[i]);
  }
  std::vector<Pairs> all;
  for (auto& [key, group] : groups) all.push_back(std::move(group));
  return all;
}

void copy_all(const Pairs& pairs) {
  for (std::size_t i = 0; i < pairs.averaged.size(); ++i) pairs.averaged[i].copy_(pairs.current[i]);
}

void average_each(const Pairs& pairs, const AverageFunction& average, const at::Tensor& count) {
  for (std::size_t i = 0; i < pairs.averaged.size(); ++i) {
    const auto& averaged = pairs.averaged[i];
    averaged.copy_(average(averaged, pairs.current[i], count.to(averaged.device())));
  }
}

// As in Python, the mean uses the kernels for lists on GPUs, which round otherwise.
void average(const Pairs& pairs, const AveragedModelOptions& options, const at::Tensor& count) {
  if (options.avg_fn) return average_each(pairs, options.avg_fn, count);
  for (const auto& group : kernel_groups(pairs)) {
    const auto device = group.averaged.front().device();
    if (options.multi_avg_fn) {
      options.multi_avg_fn(group.averaged, group.current, count.to(device));
    } else if (device.is_cpu()) {
      average_each(group, get_swa_avg_fn(), count);
    } else {
      get_swa_multi_avg_fn()(group.averaged, group.current, count.to(device));
    }
  }
}

// Calls `action` if the module is a BatchNorm layer.
template <typename Action>
void with_batch_norm(torch::nn::Module& module, const Action& action) {
  using namespace torch::nn;
  if (auto* layer = dynamic_cast<BatchNorm1dImpl*>(&module)) return action(*layer);
  if (auto* layer = dynamic_cast<BatchNorm2dImpl*>(&module)) return action(*layer);
  if (auto* layer = dynamic_cast<BatchNorm3dImpl*>(&module)) return action(*layer);
  if (auto* layer = dynamic_cast<SyncBatchNormImpl*>(&module)) return action(*layer);
}

}  // namespace

AverageFunction get_ema_avg_fn(double decay) {
  check_decay(decay);
  return [decay](const at::Tensor& averaged, const at::Tensor& current, const at::Tensor&) {
    return averaged.mul(decay) + current.mul(1 - decay);
  };
}

MultiAverageFunction get_ema_multi_avg_fn(double decay) {
  check_decay(decay);
  return [decay](const AveragedTensors& averaged, const AveragedTensors& current, const at::Tensor&) {
    const c10::NoGradGuard no_grad;
    if (is_inexact(averaged.front())) return at::_foreach_lerp_(averaged, current, 1 - decay);
    for (std::size_t i = 0; i < averaged.size(); ++i)
      averaged[i].copy_(averaged[i].mul(decay) + current[i].mul(1 - decay));
  };
}

AverageFunction get_swa_avg_fn() {
  return [](const at::Tensor& averaged, const at::Tensor& current, const at::Tensor& num_averaged) {
    return averaged + (current - averaged) / (num_averaged + 1);
  };
}

MultiAverageFunction get_swa_multi_avg_fn() {
  return [](const AveragedTensors& averaged, const AveragedTensors& current, const at::Tensor& count) {
    const c10::NoGradGuard no_grad;
    if (is_inexact(averaged.front()))
      return at::_foreach_lerp_(averaged, current, (count + 1).reciprocal().item());
    const auto differences = at::_foreach_sub(current, averaged);
    for (std::size_t i = 0; i < averaged.size(); ++i) averaged[i].addcdiv_(differences[i], count + 1);
  };
}

AveragedModelBase::AveragedModelBase(const AveragedModelOptions& options)
    : nn::WrapperModule("AveragedModel"), options_(options) {
  if (options_.avg_fn && options_.multi_avg_fn)
    throw_error<ArgumentError>("AveragedModel: give avg_fn or multi_avg_fn, not both");
  const auto dtype = at::TensorOptions(at::kLong).device(options_.device.value_or(at::kCPU));
  n_averaged_ = register_buffer("n_averaged", at::zeros({}, dtype));
}

std::shared_ptr<torch::nn::Module> AveragedModelBase::copy_of(
    const std::shared_ptr<const torch::nn::Module>& model) {
  if (!model) throw_error<ArgumentError>("AveragedModel: the model is empty (a null holder or pointer)");
  copy_ = nn::copy_module(*model, "AveragedModel", "", options_.device);
  nn::convert_copy(*model, copy_);
  const auto from = model->torch::nn::Module::parameters();
  const auto to = copy_->torch::nn::Module::parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to.at(i).set_requires_grad(from[i].requires_grad());
  return copy_;
}

void AveragedModelBase::update_parameters(ConstModuleRef model) {
  const c10::NoGradGuard no_grad;
  const auto pairs = pairs_of(parameters_and_buffers(*copy_, options_.use_buffers),
                              parameters_and_buffers(model, options_.use_buffers));
  if (n_averaged_.item<std::int64_t>() == 0) {
    copy_all(pairs);
  } else {
    average(pairs, options_, n_averaged_);
  }
  if (!options_.use_buffers) copy_all(pairs_of(copy_->named_buffers(), model->named_buffers()));
  n_averaged_ += 1;
}

BatchNormUpdate::BatchNormUpdate(ModuleRef module) : module_(module), was_training_(module->is_training()) {
  module->apply([this](torch::nn::Module& each) {
    with_batch_norm(each, [this](auto& layer) {
      layer.reset_running_stats();
      restore_.emplace_back(
          [&layer, momentum = layer.options.momentum()] { layer.options.momentum(momentum); });
      layer.options.momentum(std::nullopt);
    });
  });
  if (has_layers()) module->train();
}

BatchNormUpdate::~BatchNormUpdate() {
  // A layer with several names was changed several times; the first change knows its momentum.
  for (auto restore = restore_.rbegin(); restore != restore_.rend(); ++restore) (*restore)();
  if (has_layers()) module_.train(was_training_);
}

}  // namespace lockstep::optim
