// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace lockstep::data {

// A CPU generator seeded as Python's `torch.Generator().manual_seed(seed)`.
inline at::Generator seeded_generator(std::int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>();
  generator.set_current_seed(static_cast<std::uint64_t>(seed));
  return generator;
}

// Python's `torch.empty((), dtype=torch.int64).random_(generator=generator).item()`.
inline std::int64_t draw_seed(const std::optional<at::Generator>& generator) {
  return at::empty({}, at::kLong).random_(generator).item<std::int64_t>();
}

}  // namespace lockstep::data
