// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/generator_states.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

namespace lockstep::checkpointing {
namespace {

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(state.cpu());
  } catch (const c10::Error& error) {
    throw CheckpointError(fmt::format("this is no state of a generator: {}", error.what_without_backtrace()));
  }
}

}  // namespace

std::vector<at::Generator> gpu_generators() {
  std::vector<at::Generator> generators;
  for (int i = 0; i < device_count(at::kCUDA); ++i) {
    generators.push_back(at::globalContext().defaultGenerator({at::kCUDA, static_cast<c10::DeviceIndex>(i)}));
  }
  return generators;
}

Value generator_states(at::Generator cpu, std::vector<at::Generator> gpus) {
  if (gpus.empty()) return state_of(cpu);
  List states;
  for (auto& gpu : gpus) states.items.emplace_back(state_of(gpu));
  return Dict{{"cpu", state_of(cpu)}, {"cuda", std::move(states)}};
}

void set_generator_states(at::Generator cpu, std::vector<at::Generator> gpus, const Value& states) {
  // A bare tensor is what Python's torch.get_rng_state() gives.
  if (states.is<at::Tensor>()) return set_state(cpu, states.as_tensor());
  set_state(cpu, states["cpu"].as_tensor());
  const auto& saved = states["cuda"].as_items();
  if (saved.size() > gpus.size()) {
    log(LogLevel::warning,
        fmt::format("the checkpoint has the random numbers of {} GPUs, but this process has {}", saved.size(),
                    gpus.size()));
  }
  for (std::size_t i = 0; i < std::min(saved.size(), gpus.size()); ++i)
    set_state(gpus[i], saved[i].as_tensor());
}

}  // namespace lockstep::checkpointing
