// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
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

List list_of(const std::vector<double>& numbers) {
  return List(std::vector<Value>(numbers.begin(), numbers.end()));
}

std::vector<double> numbers_in(const Value& list) {
  std::vector<double> numbers;
  for (const auto& item : list.as_items()) numbers.push_back(number_of(item));
  return numbers;
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

// take(name, field, convert) sets a field from an entry of the dict, if it exists.
auto taker(const char* scheduler, const Dict& state_dict) {
  return [scheduler, &state_dict](const char* name, auto& field, auto convert) {
    const auto* value = state_dict.find(name);
    if (value == nullptr) return;
    try {
      field = convert(*value);
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

Dict StepLR::state_dict() const {
  return {{"step_size", step_size_},
          {"gamma", gamma_},
          {"base_lrs", list_of(base_lrs_)},
          {"last_epoch", last_epoch_},
          {"_step_count", step_count_},
          {"_is_initial", false},
          {"_get_lr_called_within_step", false},
          {"_last_lr", list_of(last_lr_)}};
}

void StepLR::load_state_dict(const Dict& state_dict) {
  auto loaded = *this;
  const auto take = taker("StepLR", state_dict);
  const auto count = [](const Value& value) { return value.as_int(); };
  take("step_size", loaded.step_size_, count);
  take("gamma", loaded.gamma_, number_of);
  take("base_lrs", loaded.base_lrs_, numbers_in);
  take("last_epoch", loaded.last_epoch_, count);
  take("_step_count", loaded.step_count_, count);
  take("_last_lr", loaded.last_lr_, numbers_in);
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

Dict ReduceLROnPlateau::state_dict() const {
  return {{"factor", factor_},
          {"default_min_lr", default_min_lr_ ? Value(*default_min_lr_) : Value()},
          {"min_lrs", list_of(min_lrs_)},
          {"patience", patience_},
          {"cooldown", cooldown_},
          {"eps", eps_},
          {"last_epoch", last_epoch_},
          {"_last_lr", list_of(last_lr_)},
          {"mode_worse", worst_in(mode_)},
          {"mode", mode_},
          {"threshold", threshold_},
          {"threshold_mode", threshold_mode_},
          {"best", best_},
          {"cooldown_counter", cooldown_counter_},
          {"num_bad_epochs", num_bad_epochs_}};
}

void ReduceLROnPlateau::load_state_dict(const Dict& state_dict) {
  auto loaded = *this;
  const auto take = taker("ReduceLROnPlateau", state_dict);
  const auto number = [](const Value& value) { return value.as_double(); };
  const auto count = [](const Value& value) { return value.as_int(); };
  const auto text = [](const Value& value) { return value.as_string(); };
  take("factor", loaded.factor_, number);
  take("default_min_lr", loaded.default_min_lr_,
       [](const Value& value) { return value.is<None>() ? std::nullopt : std::optional(value.as_double()); });
  take("min_lrs", loaded.min_lrs_, numbers_in);
  take("patience", loaded.patience_, count);
  take("cooldown", loaded.cooldown_, count);
  take("eps", loaded.eps_, number);
  take("last_epoch", loaded.last_epoch_, count);
  take("_last_lr", loaded.last_lr_, numbers_in);
  take("mode", loaded.mode_, text);
  take("threshold", loaded.threshold_, number);
  take("threshold_mode", loaded.threshold_mode_, text);
  take("best", loaded.best_, number);
  take("cooldown_counter", loaded.cooldown_counter_, count);
  take("num_bad_epochs", loaded.num_bad_epochs_, count);
  if (!is_mode(loaded.mode_)) throw_error("mode {} is unknown!", loaded.mode_);
  if (!is_threshold_mode(loaded.threshold_mode_))
    throw_error("threshold mode {} is unknown!", loaded.threshold_mode_);
  *this = std::move(loaded);
}

}  // namespace lockstep::optim
