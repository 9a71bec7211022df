// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/metrics/metrics.h>

#include "base/throw_error.h"

namespace lockstep {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(options) {
  if (options_.patience < 1)
    throw_error<ArgumentError>("EarlyStopping: patience = {}; give at least 1", options_.patience);
  if (!(options_.min_delta >= 0))
    throw_error<ArgumentError>("EarlyStopping: min_delta = {}; give 0 or more", options_.min_delta);
}

bool EarlyStopping::step(double metric) {
  const double gain = options_.higher_is_better ? metric - best_.value_or(0) : best_.value_or(0) - metric;
  const bool is_better = best_ ? gain > options_.min_delta : metric == metric;
  if (is_better) best_ = metric;
  bad_validations_ = is_better ? 0 : bad_validations_ + 1;
  return stops();
}

Dict EarlyStopping::state_dict() const {
  return {{"best", best_ ? Value(*best_) : Value()}, {"bad_validations", bad_validations_}};
}

void EarlyStopping::load_state_dict(const Dict& state_dict) {
  const auto& best = state_dict.at("best");
  const auto bad_validations = state_dict.at("bad_validations").as_int();
  best_ = best.is<None>() ? std::nullopt : std::optional(best.as_double());
  bad_validations_ = bad_validations;
}

}  // namespace lockstep
