// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <utility>

#include "base/throw_error.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

bool is_mode(const std::string& mode) { return mode == "min" || mode == "max"; }
bool is_threshold_mode(const std::string& mode) { return mode == "rel" || mode == "abs"; }

double worst_in(const std::string& mode) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  return mode == "min" ? infinity : -infinity;
}

void check_options(const ReduceLROnPlateauOptions& options, std::size_t groups) {
  const auto refuse = [](const std::string& what) {
    throw_error<ArgumentError>("ReduceLROnPlateau: {}", what);
  };
  if (!(options.factor < 1))
    refuse(fmt::format("factor = {} does not lower anything; give less than 1", options.factor));
  if (!is_mode(options.mode)) refuse(fmt::format("mode '{}' is unknown; give 'min' or 'max'", options.mode));
  if (!is_threshold_mode(options.threshold_mode))
    refuse(fmt::format("threshold_mode '{}' is unknown; give 'rel' or 'abs'", options.threshold_mode));
  if (!options.min_lrs.empty() && options.min_lrs.size() != groups)
    refuse(fmt::format("there are {} min_lrs for {} parameter groups", options.min_lrs.size(), groups));
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : optimizer_(&optimizer),
      mode_(std::move(options.mode)),
      factor_(options.factor),
      patience_(options.patience),
      threshold_(options.threshold),
      threshold_mode_(std::move(options.threshold_mode)),
      cooldown_(options.cooldown),
      min_lrs_(std::move(options.min_lrs)),
      eps_(options.eps),
      best_(worst_in(mode_)),
      last_lr_(rates_of(optimizer)) {
  check_options({.mode = mode_, .factor = factor_, .threshold_mode = threshold_mode_, .min_lrs = min_lrs_},
                last_lr_.size());
  if (!min_lrs_.empty()) return;
  default_min_lr_ = options.min_lr;
  min_lrs_.assign(last_lr_.size(), options.min_lr);
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = threshold_mode_ == "rel";
  if (mode_ == "min") return metric < (relative ? best_ * (1 - threshold_) : best_ - threshold_);
  return metric > (relative ? best_ * (threshold_ + 1) : best_ + threshold_);
}

void ReduceLROnPlateau::step(double metric) {
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
  fields("mode", mode_);
  fields("threshold", threshold_);
  fields("threshold_mode", threshold_mode_);
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

void ReduceLROnPlateau::load_state_dict(const Dict& state_dict) {
  auto loaded = *this;
  Fields fields(state_dict, "ReduceLROnPlateau", false);
  loaded.visit_fields(fields);
  if (!is_mode(loaded.mode_)) throw_error<CheckpointError>("mode {} is unknown!", loaded.mode_);
  if (!is_threshold_mode(loaded.threshold_mode_))
    throw_error<CheckpointError>("threshold mode {} is unknown!", loaded.threshold_mode_);
  *this = std::move(loaded);
}

}  // namespace lockstep::optim
