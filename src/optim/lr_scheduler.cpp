// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <type_traits>
#include <utility>

#include <lockstep/optim/lr_scheduler.h>

#include "serialize/errors.h"
#include "serialize/plain_values.h"

namespace lockstep::optim {
namespace {

using serialize::number_of;

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

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

Value to_value(const std::vector<double>& numbers) {
  return List(std::vector<Value>(numbers.begin(), numbers.end()));
}
Value to_value(const std::optional<double>& number) { return number ? Value(*number) : Value(); }
Value to_value(const auto& field) { return Value(field); }

void read(const Value& value, std::int64_t& field) { field = value.as_int(); }
void read(const Value& value, double& field) { field = number_of(value); }
void read(const Value& value, std::string& field) { field = value.as_string(); }
void read(const Value& value, std::optional<double>& field) {
  field = value.is<None>() ? std::nullopt : std::optional(value.as_double());
}
void read(const Value& list, std::vector<double>& field) {
  field.clear();
  for (const auto& item : list.as_items()) field.push_back(number_of(item));
}

// For visit_fields(): adds each field to a dict.
auto writer(Dict& state_dict) {
  return [&state_dict](const char* name, const auto& field) { state_dict.set(name, to_value(field)); };
}

// For visit_fields(): sets the fields that the dict has.
auto reader(const char* scheduler, const Dict& state_dict) {
  return [scheduler, &state_dict](const char* name, auto& field) {
    const auto* value = state_dict.find(name);
    if (value == nullptr) return;
    try {
      read(*value, field);
    } catch (const CheckpointError& error) {
      throw_error("{}: '{}': {}", scheduler, name, error.what());
    }
  };
}

}  // namespace

StepLR::StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma)
    : optimizer_(&optimizer),
      step_size_(step_size),
      gamma_(gamma),
      base_lrs_(rates_of(optimizer)),
      last_lr_(base_lrs_) {
  if (step_size < 1) throw_error<ArgumentError>("StepLR: step_size = {}; give at least 1", step_size);
}

void StepLR::step() {
  ++step_count_;
  ++last_epoch_;
  if (last_epoch_ != 0 && last_epoch_ % step_size_ == 0) {
    for (auto& group : optimizer_->param_groups()) {
      group.options().set_lr(group.options().get_lr() * gamma_);
    }
  }
  last_lr_ = rates_of(*optimizer_);
}

template <typename Scheduler, typename Visit>
void StepLR::visit_fields(Scheduler& scheduler, const Visit& visit) {
  visit("step_size", scheduler.step_size_);
  visit("gamma", scheduler.gamma_);
  visit("base_lrs", scheduler.base_lrs_);
  visit("last_epoch", scheduler.last_epoch_);
  visit("_step_count", scheduler.step_count_);
  if constexpr (std::is_const_v<Scheduler>) {  // what only Python needs
    visit("_is_initial", false);
    visit("_get_lr_called_within_step", false);
  }
  visit("_last_lr", scheduler.last_lr_);
}

Dict StepLR::state_dict() const {
  Dict dict;
  visit_fields(*this, writer(dict));
  return dict;
}

void StepLR::load_state_dict(const Dict& state_dict) {
  auto loaded = *this;
  visit_fields(loaded, reader("StepLR", state_dict));
  if (state_dict.find("last_epoch") == nullptr) throw CheckpointError("StepLR: 'last_epoch' is missing");
  const auto groups = optimizer_->param_groups().size();
  for (const auto& [name, rates] :
       {std::pair("base_lrs", &loaded.base_lrs_), {"_last_lr", &loaded.last_lr_}}) {
    if (rates->size() == groups) continue;
    throw_error("StepLR: '{}' has rates of {} parameter groups, but the optimizer has {}", name,
                rates->size(), groups);
  }
  if (loaded.step_size_ < 1) throw_error("StepLR: 'step_size' is {}, below 1", loaded.step_size_);
  *this = std::move(loaded);
}

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

template <typename Scheduler, typename Visit>
void ReduceLROnPlateau::visit_fields(Scheduler& scheduler, const Visit& visit) {
  visit("factor", scheduler.factor_);
  visit("default_min_lr", scheduler.default_min_lr_);
  visit("min_lrs", scheduler.min_lrs_);
  visit("patience", scheduler.patience_);
  visit("cooldown", scheduler.cooldown_);
  visit("eps", scheduler.eps_);
  visit("last_epoch", scheduler.last_epoch_);
  visit("_last_lr", scheduler.last_lr_);
  if constexpr (std::is_const_v<Scheduler>) visit("mode_worse", worst_in(scheduler.mode_));
  visit("mode", scheduler.mode_);
  visit("threshold", scheduler.threshold_);
  visit("threshold_mode", scheduler.threshold_mode_);
  visit("best", scheduler.best_);
  visit("cooldown_counter", scheduler.cooldown_counter_);
  visit("num_bad_epochs", scheduler.num_bad_epochs_);
}

Dict ReduceLROnPlateau::state_dict() const {
  Dict dict;
  visit_fields(*this, writer(dict));
  return dict;
}

void ReduceLROnPlateau::load_state_dict(const Dict& state_dict) {
  auto loaded = *this;
  visit_fields(loaded, reader("ReduceLROnPlateau", state_dict));
  if (!is_mode(loaded.mode_)) throw_error("mode {} is unknown!", loaded.mode_);
  if (!is_threshold_mode(loaded.threshold_mode_))
    throw_error("threshold mode {} is unknown!", loaded.threshold_mode_);
  *this = std::move(loaded);
}

}  // namespace lockstep::optim
