// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/generator_states.h"

#include <algorithm>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "device/generators.h"

namespace lockstep::checkpointing {
namespace {

constexpr const char* kAllGpus = "cuda";
constexpr const char* kOwnGpu = "own_cuda";

void warn_of_missing(std::size_t saved, std::size_t here) {
  log(LogLevel::warning, fmt::format("the checkpoint has the random numbers of {} GPUs, but this process has "
                                     "{}",
                                     saved, here));
}

void set_state(const at::Generator& generator, const at::Tensor& state) {
  try {
    device::set_state(generator, state.cpu());
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("this is not the state of a generator: {}", error.what_without_backtrace());
  }
}

}  // namespace

Value generator_states(at::Generator cpu, GpuGenerators gpus) {
  if (gpus.all.empty()) return device::state_of(cpu);
  if (gpus.only_own)
    return Dict{{"cpu", device::state_of(cpu)}, {kOwnGpu, device::state_of(gpus.all.at(gpus.own))}};
  List states;
  for (auto& gpu : gpus.all) states.items.emplace_back(device::state_of(gpu));
  return Dict{{"cpu", device::state_of(cpu)}, {kAllGpus, std::move(states)}};
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

}  // namespace lockstep::checkpointing
