// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/step_lr.h>

#include "checkpoint/learning_rates.h"

namespace lockstep {

using checkpointing::rates_of;

StepLR::StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma)
    : optimizer_(&optimizer),
      step_size_(step_size),
      gamma_(gamma),
      base_lrs_(rates_of(optimizer)),
      last_lr_(base_lrs_) {
  if (step_size < 1) throw ArgumentError(fmt::format("StepLR: step_size = {}; give at least 1", step_size));
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
          {"base_lrs", checkpointing::list_of(base_lrs_)},
          {"last_epoch", last_epoch_},
          {"_step_count", step_count_},
          {"_is_initial", false},
          {"_get_lr_called_within_step", false},
          {"_last_lr", checkpointing::list_of(last_lr_)}};
}

void StepLR::load_state_dict(const Dict& state_dict) {
  auto loaded = *this;
  const auto take = [&](const char* name, auto& field, auto convert) {
    const auto* value = state_dict.find(name);
    if (value == nullptr) return;
    try {
      field = convert(*value);
    } catch (const CheckpointError& error) {
      throw CheckpointError(fmt::format("StepLR: '{}': {}", name, error.what()));
    }
  };
  const auto count = [](const Value& value) { return value.as_int(); };
  take("step_size", loaded.step_size_, count);
  take("gamma", loaded.gamma_, checkpointing::number_of);
  take("base_lrs", loaded.base_lrs_, checkpointing::numbers_in);
  take("last_epoch", loaded.last_epoch_, count);
  take("_step_count", loaded.step_count_, count);
  take("_last_lr", loaded.last_lr_, checkpointing::numbers_in);
  if (state_dict.find("last_epoch") == nullptr) throw CheckpointError("StepLR: 'last_epoch' is missing");
  const auto groups = optimizer_->param_groups().size();
  for (const auto& [name, rates] :
       {std::pair("base_lrs", &loaded.base_lrs_), {"_last_lr", &loaded.last_lr_}}) {
    if (rates->size() == groups) continue;
    throw CheckpointError(
        fmt::format("StepLR: '{}' has rates of {} parameter groups, but the optimizer has {}", name,
                    rates->size(), groups));
  }
  if (loaded.step_size_ < 1) {
    throw CheckpointError(fmt::format("StepLR: 'step_size' is {}, below 1", loaded.step_size_));
  }
  *this = std::move(loaded);
}

}  // namespace lockstep
