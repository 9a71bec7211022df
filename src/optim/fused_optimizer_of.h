// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/serialize/archive.h>

#include <lockstep/optim/fused_optimizer.h>

#include "serialize/errors.h"

namespace lockstep::optim {

// What differs between fused optimizers: `Base`, LibTorch's options; `State` of a parameter; `name`;
// check(options); and prepare(optimizer, group, index, options), which implements prepare_group().
template <typename Options>
struct FusedTraits;

// NaN fails, too.
inline void check_at_least_zero(double value, const char* name, const char* optimizer) {
  if (!(value >= 0)) throw_error<ArgumentError>("{}: {} must be 0 or more, not {}", optimizer, name, value);
}

template <typename Options>
FusedOptimizerOf<Options>::FusedOptimizerOf(
    const std::vector<torch::optim::OptimizerParamGroup>& param_groups, Options defaults)
    : FusedOptimizer(std::make_unique<Options>(std::move(defaults))) {
  begin(param_groups);
}

template <typename Options>
void FusedOptimizerOf<Options>::save(torch::serialize::OutputArchive& archive) const {
  check_groups();
  torch::optim::serialize<typename FusedTraits<Options>::State, Options>(archive, *this);
}

template <typename Options>
void FusedOptimizerOf<Options>::load(torch::serialize::InputArchive& archive) {
  load_with([&] { torch::optim::serialize<typename FusedTraits<Options>::State, Options>(archive, *this); });
}

template <typename Options>
std::unique_ptr<torch::optim::OptimizerOptions> FusedOptimizerOf<Options>::own_options(
    const torch::optim::OptimizerOptions& given) const {
  using Base = typename FusedTraits<Options>::Base;
  if (const auto* own = dynamic_cast<const Options*>(&given)) return std::make_unique<Options>(*own);
  if (const auto* base = dynamic_cast<const Base*>(&given)) return std::make_unique<Options>(*base);
  throw_error<ArgumentError>("{}: a group has the options of another kind of optimizer; give it {}Options",
                             name(), name());
}

template <typename Options>
void FusedOptimizerOf<Options>::check_values(const torch::optim::OptimizerOptions& options) const {
  FusedTraits<Options>::check(dynamic_cast<const Options&>(options));
}

template <typename Options>
const char* FusedOptimizerOf<Options>::name() const noexcept {
  return FusedTraits<Options>::name;
}

template <typename Options>
std::function<void()> FusedOptimizerOf<Options>::prepare_group(const torch::optim::OptimizerParamGroup& group,
                                                               std::size_t index) {
  return FusedTraits<Options>::prepare(*this, group, index, dynamic_cast<const Options&>(group.options()));
}

}  // namespace lockstep::optim
