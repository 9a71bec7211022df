// SPDX-License-Identifier: BSD-3-Clause
#include "device/generators.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace lockstep::device {

at::Generator seeded_generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

std::int64_t draw_seed(const std::optional<at::Generator>& generator) {
  return at::empty({}, at::kLong).random_(generator).item<std::int64_t>();
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace lockstep::device
