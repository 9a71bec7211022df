// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/training_parts.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "checkpoint/module_state.h"
#include "serialize/errors.h"

namespace lockstep::checkpointing {
namespace {

constexpr const char* kAllGpus = "cuda";
constexpr const char* kOwnGpu = "own_cuda";

void warn_of_missing(std::size_t saved, std::size_t here) {
  log(LogLevel::warning, fmt::format("the checkpoint has the random numbers of {} GPUs, but this process has "
                                     "{}",
                                     saved, here));
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(state.cpu());
  } catch (const c10::Error& error) {
    throw_error("this is not the state of a generator: {}", error.what_without_backtrace());
  }
}

constexpr const char* kOfAll = "all";
constexpr const char* kRanks = "ranks";

Dict own_gradients(const torch::nn::Module& module) {
  Dict gradients;
  for (const auto& [name, tensor, is_parameter] : module_tensors(module)) {
    if (!is_parameter) continue;
    const auto& gradient = tensor.grad();
    // Only its own part of a shared bucket, and on the CPU, because a device index would make equal gradients
    // differ.
    gradients.set(name, gradient.defined() ? Value(gradient.detach().cpu().clone()) : Value());
  }
  return gradients;
}

void check_gradient(const std::string& name, const at::Tensor& parameter, const Value* saved) {
  if (saved == nullptr) throw_error("there is no gradient for '{}'", name);
  if (saved->is<None>() || saved->as_tensor().sizes() == parameter.sizes()) return;
  throw_error("the gradient of '{}' is of shape [{}] instead of [{}]", name,
              fmt::join(saved->as_tensor().sizes(), ", "), fmt::join(parameter.sizes(), ", "));
}

void set_gradient(const at::Tensor& parameter, const Value& saved) {
  auto& gradient = parameter.mutable_grad();
  if (saved.is<None>()) {
    gradient.reset();
  } else if (gradient.defined()) {
    // It may lie in a bucket.
    const at::NoGradGuard no_grad;
    gradient.copy_(saved.as_tensor());
  } else {
    gradient = at::empty_like(parameter.detach()).copy_(saved.as_tensor());
  }
}

const Dict& gradients_for(const Group& group, const Dict& saved) {
  if (const auto* of_all = saved.find(kOfAll)) return of_all->as_dict();
  const auto ranks = group ? group->size() : 1;
  if (saved.at(kRanks).as_int() != ranks) {
    throw_error(
        "gradients that {} ranks accumulated cannot be loaded by {}: use as many ranks, or a checkpoint "
        "saved "
        "after an optimizer step",
        saved.at(kRanks).as_int(), ranks);
  }
  return saved.at(group ? group->rank() : 0).as_dict();
}

}  // namespace

GpuGenerators gpu_generators(bool only_own) {
  GpuGenerators gpus;
  gpus.only_own = only_own;
  for (int i = 0; i < device_count(at::kCUDA); ++i) {
    gpus.all.push_back(at::globalContext().defaultGenerator({at::kCUDA, static_cast<c10::DeviceIndex>(i)}));
  }
  if (!gpus.all.empty()) {
    gpus.own = static_cast<std::size_t>(c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index());
  }
  return gpus;
}

Value generator_states(at::Generator cpu, GpuGenerators gpus) {
  if (gpus.all.empty()) return state_of(cpu);
  if (gpus.only_own) return Dict{{"cpu", state_of(cpu)}, {kOwnGpu, state_of(gpus.all.at(gpus.own))}};
  List states;
  for (auto& gpu : gpus.all) states.items.emplace_back(state_of(gpu));
  return Dict{{"cpu", state_of(cpu)}, {kAllGpus, std::move(states)}};
}

void set_generator_states(at::Generator cpu, GpuGenerators gpus, const Value& states) {
  // A bare tensor is what Python's torch.get_rng_state() gives.
  if (states.is<at::Tensor>()) return set_state(cpu, states.as_tensor());
  set_state(cpu, states["cpu"].as_tensor());
  if (const auto* own = states.as_dict().find(kOwnGpu)) {
    if (gpus.all.empty()) return warn_of_missing(1, 0);
    return set_state(gpus.all.at(gpus.own), own->as_tensor());
  }
  const auto& saved = states[kAllGpus].as_items();
  if (saved.size() > gpus.all.size()) warn_of_missing(saved.size(), gpus.all.size());
  for (std::size_t i = 0; i < std::min(saved.size(), gpus.all.size()); ++i) {
    if (!gpus.only_own || i == gpus.own) set_state(gpus.all[i], saved[i].as_tensor());
  }
}

Value gradients_of(const torch::nn::Module& module, const Group& group) {
  auto own = own_gradients(module);
  if (!group || group->size() == 1) return Dict{{kOfAll, std::move(own)}};
  const auto bytes = save_bytes(own);
  const auto sums = group->all_gather_object(digest_of(bytes));
  const bool same = std::ranges::all_of(sums, [&](const std::string& sum) { return sum == sums[0]; });
  if (same) return Dict{{kOfAll, std::move(own)}};
  const auto all = group->gather_object(bytes, 0);
  Dict states{{kRanks, group->size()}, {group->rank(), std::move(own)}};
  for (std::size_t rank = 1; rank < all.size(); ++rank) states.set(rank, load_bytes(all[rank]));
  return states;
}

void set_gradients(const torch::nn::Module& module, const Group& group, const Value& saved) {
  const auto& gradients = gradients_for(group, saved.as_dict());
  const auto tensors = module_tensors(module);
  for (const auto& [name, tensor, is_parameter] : tensors) {
    if (is_parameter) check_gradient(name, tensor, gradients.find(name));
  }
  for (const auto& [name, tensor, is_parameter] : tensors) {
    if (is_parameter) set_gradient(tensor, gradients.at(name));
  }
}

}  // namespace lockstep::checkpointing
