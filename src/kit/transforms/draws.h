// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <cstdint>

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scalar_tensor.h>

#include <lockstep/transforms/geometry.h>

// The random numbers of torchvision, from the same calls of LibTorch.
namespace lockstep::transforms {

// Python's `torch.rand(1) < p`, where p becomes a float.
inline bool happens(double p, const OptionalGenerator& generator) {
  return at::rand({1}, generator, at::kFloat).item<float>() < static_cast<float>(p);
}

// Python's `torch.rand(()) <= p`.
inline bool happens_up_to(double p, const OptionalGenerator& generator) {
  return at::rand({}, generator, at::kFloat).item<float>() <= static_cast<float>(p);
}

inline double uniform(const Range& range, const OptionalGenerator& generator) {
  return at::empty({1}, at::kFloat).uniform_(range.first, range.second, generator).item<float>();
}

// One of 0 .. end-1.
inline std::int64_t below(std::int64_t end, const OptionalGenerator& generator) {
  return at::randint(end, {1}, generator, at::kLong).item<std::int64_t>();
}

// torchvision takes the logarithm of a ratio, and the exponential of what it draws, as floats.
inline double float_log(double value) { return at::scalar_tensor(value, at::kFloat).log().item<float>(); }

inline double draw_ratio(const Range& log_ratio, const OptionalGenerator& generator) {
  auto drawn = at::empty({1}, at::kFloat).uniform_(log_ratio.first, log_ratio.second, generator);
  return drawn.exp_().item<float>();
}

// Python's int(round(x)), which rounds halves to even.
inline std::int64_t rounded(double value) { return static_cast<std::int64_t>(std::nearbyint(value)); }

}  // namespace lockstep::transforms
