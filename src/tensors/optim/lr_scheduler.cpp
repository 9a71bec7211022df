// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;

class LambdaSchedule : public Schedule {
 public:
  LambdaSchedule(Optimizer& optimizer, const char* name, bool multiplies, std::vector<LrLambda> lr_lambdas)
      : Schedule(optimizer, name), multiplies_(multiplies), lr_lambdas_(std::move(lr_lambdas)) {}

 protected:
  double next_lr(std::size_t group, double lr) const override {
    if (multiplies_ && is_initial_) return lr;
    check_group(group);
    return (multiplies_ ? lr : base_lr(group)) * lr_lambdas_[group](last_epoch_);
  }
  void visit_fields(Fields& fields) override {
    fields.constant("lr_lambdas", List(std::vector<Value>(lr_lambdas_.size())));
    fields.read("lr_lambdas", [](const Value& states) {
      for (const auto& state : states.as_items()) {
        if (!state.is<None>())
          throw_error<CheckpointError>("it has the attributes of a Python object; make it [None, ...]");
      }
    });
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    if (lr_lambdas_.size() != group_count()) {
      return fmt::format("there are {} functions for {} parameter groups; give one or one per group",
                         lr_lambdas_.size(), group_count());
    }
    const bool empty = std::any_of(lr_lambdas_.begin(), lr_lambdas_.end(), [](auto& f) { return !f; });
    return empty ? "a function of lr_lambda is empty" : "";
  }

 private:
  bool multiplies_;
  std::vector<LrLambda> lr_lambdas_;
};

std::vector<LrLambda> for_each_group(const Optimizer& optimizer, const LrLambda& lr_lambda) {
  return std::vector<LrLambda>(optimizer.param_groups().size(), lr_lambda);
}

// Schedules of one optimizer, which set its rates.
class ComposedSchedule : public Schedule {
 public:
  ComposedSchedule(Optimizer& optimizer, const char* name, const std::vector<LRScheduler>& schedulers)
      : Schedule(optimizer, name) {
    for (const auto& scheduler : schedulers) {
      const auto& schedule = Schedule::of(scheduler);
      if (&schedule->optimizer() != &optimizer) {
        throw_error<ArgumentError>("{}: the scheduler at index {}, a {}, is of another optimizer", name,
                                   schedules_.size(), schedule->name());
      }
      schedules_.push_back(schedule);
    }
  }

  void undo() override {
    for (const auto& schedule : schedules_) schedule->undo();
  }
  bool is_composed() const override { return true; }

 protected:
  double next_lr(std::size_t, double lr) const override { return lr; }
  void visit_fields(Fields& fields) override {
    fields("_last_lr", last_lr_);
    List states;
    for (const auto& schedule : schedules_) states.items.emplace_back(schedule->state_dict());
    fields.constant("_schedulers", std::move(states));
    fields.read("_schedulers", [this](const Value& list) {
      const auto& items = list.as_items();
      if (items.size() != schedules_.size())
        throw_error<CheckpointError>("there are {} states for {} schedulers", items.size(),
                                     schedules_.size());
      for (std::size_t i = 0; i < items.size(); ++i) schedules_[i]->load_state_dict(items[i].as_dict());
    });
  }

  std::vector<std::shared_ptr<Schedule>> schedules_;
};

class SequentialSchedule : public ComposedSchedule {
 public:
  SequentialSchedule(Optimizer& optimizer, const std::vector<LRScheduler>& schedulers,
                     std::vector<std::int64_t> milestones)
      : ComposedSchedule(optimizer, "SequentialLR", schedulers), milestones_(std::move(milestones)) {}

  void step() override {
    ++last_epoch_;
    const auto index = index_at(last_epoch_);
    auto& schedule = *schedules_[index];
    if (index > 0 && milestones_[index - 1] == last_epoch_) {
      schedule.update(0);
    } else {
      schedule.step();
    }
    last_lr_ = schedule.last_lr();
  }

 protected:
  // Back to the initial rates, and only the first schedule takes its initial step.
  void begin() override {
    check();
    last_epoch_ = 0;
    for (std::size_t i = 0; i < group_count(); ++i)
      optimizer_.param_groups()[i].options().set_lr(entries_->groups.at(i).at("initial_lr"));
    undo();
    auto& first = *schedules_[index_at(0)];
    first.initial_step();
    last_lr_ = first.last_lr();
  }
  void visit_fields(Fields& fields) override {
    fields("_milestones", milestones_);
    fields.required("last_epoch", last_epoch_);
    ComposedSchedule::visit_fields(fields);
  }
  std::string problem() const override {
    if (schedules_.empty() || milestones_.size() != schedules_.size() - 1) {
      return fmt::format("there are {} milestones for {} schedulers; give one less than schedulers",
                         milestones_.size(), schedules_.size());
    }
    if (!std::is_sorted(milestones_.begin(), milestones_.end())) return "'milestones' must increase";
    for (std::size_t i = 1; i < schedules_.size(); ++i) {
      if (!schedules_[i]->is_composed()) continue;
      return fmt::format("the scheduler at index {} is a {}, which cannot begin anew; make it the first", i,
                         schedules_[i]->name());
    }
    return {};
  }

 private:
  std::size_t index_at(std::int64_t epoch) const {
    const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), epoch);
    return static_cast<std::size_t>(next - milestones_.begin());
  }

  std::vector<std::int64_t> milestones_;
};

class ChainedSchedule : public ComposedSchedule {
 public:
  ChainedSchedule(Optimizer& optimizer, const std::vector<LRScheduler>& schedulers)
      : ComposedSchedule(optimizer, "ChainedScheduler", schedulers) {}

  void step() override {
    for (const auto& schedule : schedules_) schedule->step();
    last_lr_ = rates_of(optimizer_);
  }

 protected:
  void begin() override { last_lr_ = rates_of(optimizer_); }
};

Optimizer& optimizer_of(const std::vector<LRScheduler>& schedulers) {
  if (schedulers.empty()) throw_error<ArgumentError>("ChainedScheduler: give at least one scheduler");
  return Schedule::of(schedulers.front())->optimizer();
}

void require_optimizer(const std::vector<LRScheduler>& schedulers, const Optimizer& optimizer,
                       std::source_location where) {
  const CallerPlace place(where);
  if (&optimizer_of(schedulers) == &optimizer) return;
  throw_error<ArgumentError>(
      "ChainedScheduler: the schedulers are of another optimizer; pass their optimizer");
}

}  // namespace

LambdaLR::LambdaLR(Optimizer& optimizer, LrLambda lr_lambda, std::source_location where)
    : LambdaLR(optimizer, for_each_group(optimizer, lr_lambda), where) {}
LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<LrLambda> lr_lambda, std::source_location where)
    : LRScheduler(Schedule::begun<LambdaSchedule>((CallerPlace(where), optimizer), "LambdaLR", false,
                                                  std::move(lr_lambda))) {}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, LrLambda lr_lambda, std::source_location where)
    : MultiplicativeLR(optimizer, for_each_group(optimizer, lr_lambda), where) {}
MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, std::vector<LrLambda> lr_lambda,
                                   std::source_location where)
    : LRScheduler(Schedule::begun<LambdaSchedule>((CallerPlace(where), optimizer), "MultiplicativeLR", true,
                                                  std::move(lr_lambda))) {}

SequentialLR::SequentialLR(Optimizer& optimizer, const SequentialLROptions& options,
                           std::source_location where)
    : LRScheduler(Schedule::begun<SequentialSchedule>((CallerPlace(where), optimizer), options.schedulers,
                                                      options.milestones)) {}

ChainedScheduler::ChainedScheduler(const std::vector<LRScheduler>& schedulers, std::source_location where)
    : LRScheduler(
          Schedule::begun<ChainedSchedule>(optimizer_of((CallerPlace(where), schedulers)), schedulers)) {}
ChainedScheduler::ChainedScheduler(const std::vector<LRScheduler>& schedulers, Optimizer& optimizer,
                                   std::source_location where)
    : ChainedScheduler((require_optimizer(schedulers, optimizer, where), schedulers), where) {}

}  // namespace lockstep::optim
