// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include <lockstep/optim/reduce_lr_on_plateau.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "optim/fields.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

double worst_in(PlateauMode mode) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  return mode == PlateauMode::min ? infinity : -infinity;
}

// An enum that the state dict has as PyTorch's literal.
template <typename Enum>
void literal(Fields& fields, const char* name, Enum& value) {
  std::string text(Literal<Enum>(value).text());
  fields(name, text);
  const auto parsed = parse_literal<Enum>(text);
  if (!parsed)
    throw_error<CheckpointError>("ReduceLROnPlateau: '{}' is '{}'; expected one of {}", name, text,
                                 fmt::join(decltype(literals_of(value))::kNames, ", "));
  value = *parsed;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                                     const ReduceLROnPlateauOptions& options, std::source_location where)
    : optimizer_(&optimizer),
      mode_(options.mode),
      factor_(options.factor),
      patience_(options.patience),
      threshold_(options.threshold),
      threshold_mode_(options.threshold_mode),
      cooldown_(options.cooldown),
      default_min_lr_(options.min_lr.number()),
      eps_(options.eps),
      best_(worst_in(mode_)),
      last_lr_(rates_of(optimizer)) {
  const CallerPlace place(where);
  if (!(factor_ < 1))
    throw_error<ArgumentError>("ReduceLROnPlateau: factor = {} does not lower anything; give less than 1",
                               factor_);
  min_lrs_ = options.min_lr.values("ReduceLROnPlateau: min_lr", last_lr_.size());
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = threshold_mode_ == ThresholdMode::rel;
  if (mode_ == PlateauMode::min) return metric < (relative ? best_ * (1 - threshold_) : best_ - threshold_);
  return metric > (relative ? best_ * (threshold_ + 1) : best_ + threshold_);
}

void ReduceLROnPlateau::step(double metric, std::source_location where) {
  const CallerPlace place(where);
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > patience_) {
    reduce();
    cooldown_counter_ = cooldown_;
    num_bad_epochs_ = 0;
  }
  last_lr_ = rates_of(*optimizer_);
}

void ReduceLROnPlateau::reduce() {
  auto& groups = optimizer_->param_groups();
  if (groups.size() != min_lrs_.size()) {
    if (!default_min_lr_) {
      throw_error<ArgumentError>(
          "ReduceLROnPlateau: the optimizer has {} parameter groups, but there are {} min_lrs", groups.size(),
          min_lrs_.size());
    }
    min_lrs_.assign(groups.size(), *default_min_lr_);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto old_rate = groups[i].options().get_lr();
    const auto rate = std::max(old_rate * factor_, min_lrs_[i]);
    if (old_rate - rate > eps_) groups[i].options().set_lr(rate);
  }
}

void ReduceLROnPlateau::visit_fields(Fields& fields) {
  fields("factor", factor_);
  fields("default_min_lr", default_min_lr_);
  fields("min_lrs", min_lrs_);
  fields("patience", patience_);
  fields("cooldown", cooldown_);
  fields("eps", eps_);
  fields("last_epoch", last_epoch_);
  fields("_last_lr", last_lr_);
  fields.constant("mode_worse", worst_in(mode_));
  literal(fields, "mode", mode_);
  fields("threshold", threshold_);
  literal(fields, "threshold_mode", threshold_mode_);
  fields("best", best_);
  fields("cooldown_counter", cooldown_counter_);
  fields("num_bad_epochs", num_bad_epochs_);
}

Dict ReduceLROnPlateau::state_dict() const {
  Dict dict;
  Fields fields(dict);
  const_cast<ReduceLROnPlateau*>(this)->visit_fields(fields);  // which only reads them for a writer
  return dict;
}

void ReduceLROnPlateau::load_state_dict(const Dict& state_dict, std::source_location where) {
  const CallerPlace place(where);
  auto loaded = *this;
  Fields fields(state_dict, "ReduceLROnPlateau", false);
  loaded.visit_fields(fields);
  *this = std::move(loaded);
}

}  // namespace lockstep::optim
