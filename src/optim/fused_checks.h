// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>

namespace lockstep::optim {

// A copy of `given` as Options, which derive from Base.
template <typename Options, typename Base>
std::unique_ptr<torch::optim::OptimizerOptions> copied_as(const torch::optim::OptimizerOptions& given,
                                                          const char* optimizer) {
  if (const auto* own = dynamic_cast<const Options*>(&given)) return std::make_unique<Options>(*own);
  if (const auto* base = dynamic_cast<const Base*>(&given)) return std::make_unique<Options>(*base);
  throw ArgumentError(fmt::format(
      "{}: a group has the options of another kind of optimizer; give it {}Options", optimizer, optimizer));
}

// NaN is refused, too.
inline void check_at_least_zero(double value, const char* name, const char* optimizer) {
  if (!(value >= 0))
    throw ArgumentError(fmt::format("{}: {} must be 0 or more, not {}", optimizer, name, value));
}

}  // namespace lockstep::optim
