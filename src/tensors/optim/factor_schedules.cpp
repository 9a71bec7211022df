// SPDX-License-Identifier: BSD-3-Clause
// Each arithmetic expression has Python's order of operations, so that the rates are equal to the bit.
#include <algorithm>
#include <cmath>

#include "base/throw_error.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;

class LambdaSchedule : public Schedule {
 public:
  LambdaSchedule(Optimizer& optimizer, const char* name, bool multiplies, std::vector<LRLambda> lr_lambdas)
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
  std::vector<LRLambda> lr_lambdas_;
};

std::vector<LRLambda> for_each_group(const Optimizer& optimizer, const LRLambda& lr_lambda) {
  return std::vector<LRLambda>(optimizer.param_groups().size(), lr_lambda);
}

class StepSchedule : public Schedule {
 public:
  StepSchedule(Optimizer& optimizer, std::int64_t step_size, double gamma)
      : Schedule(optimizer, "StepLR"), step_size_(step_size), gamma_(gamma) {}

 protected:
  double next_lr(std::size_t, double lr) const override {
    return last_epoch_ == 0 || last_epoch_ % step_size_ != 0 ? lr : lr * gamma_;
  }
  double closed_form_lr(std::size_t group, double) const override {
    return base_lr(group) * std::pow(gamma_, real(last_epoch_ / step_size_));
  }
  void visit_fields(Fields& fields) override {
    fields("step_size", step_size_);
    fields("gamma", gamma_);
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    return step_size_ < 1 ? fmt::format("'step_size' is {}; give at least 1", step_size_) : "";
  }

 private:
  std::int64_t step_size_;
  double gamma_;
};

class MultiStepSchedule : public Schedule {
 public:
  MultiStepSchedule(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
      : Schedule(optimizer, "MultiStepLR"), milestones_(std::move(milestones)), gamma_(gamma) {}

 protected:
  double next_lr(std::size_t, double lr) const override {
    const auto times = std::count(milestones_.begin(), milestones_.end(), last_epoch_);
    return times == 0 ? lr : lr * std::pow(gamma_, real(times));
  }
  double closed_form_lr(std::size_t group, double) const override {
    const auto passed = std::count_if(milestones_.begin(), milestones_.end(),
                                      [this](auto milestone) { return milestone <= last_epoch_; });
    return base_lr(group) * std::pow(gamma_, real(passed));
  }
  void visit_fields(Fields& fields) override {
    Dict counter(DictKind::counter);
    for (const auto milestone : milestones_)
      counter.set(milestone, std::count(milestones_.begin(), milestones_.end(), milestone));
    fields.constant("milestones", std::move(counter));
    fields.read("milestones", [this](const Value& counts) {
      milestones_.clear();
      for (const auto& [milestone, times] : counts.as_dict())
        milestones_.insert(milestones_.end(), static_cast<std::size_t>(times.as_int()), milestone.as_int());
    });
    fields("gamma", gamma_);
    Schedule::visit_fields(fields);
  }

 private:
  std::vector<std::int64_t> milestones_;
  double gamma_;
};

class ConstantSchedule : public Schedule {
 public:
  ConstantSchedule(Optimizer& optimizer, double factor, std::int64_t total_iters)
      : Schedule(optimizer, "ConstantLR"), factor_(factor), total_iters_(total_iters) {}

 protected:
  double next_lr(std::size_t, double lr) const override {
    if (last_epoch_ == 0) return lr * factor_;
    return last_epoch_ == total_iters_ ? lr * (1.0 / factor_) : lr;
  }
  double closed_form_lr(std::size_t group, double) const override {
    return base_lr(group) * (factor_ + (last_epoch_ >= total_iters_ ? 1 : 0) * (1 - factor_));
  }
  void visit_fields(Fields& fields) override {
    fields("factor", factor_);
    fields("total_iters", total_iters_);
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    return factor_ >= 0 && factor_ <= 1 ? "" : fmt::format("'factor' is {}; give 0 to 1", factor_);
  }

 private:
  double factor_;
  std::int64_t total_iters_;
};

class LinearSchedule : public Schedule {
 public:
  LinearSchedule(Optimizer& optimizer, double start_factor, double end_factor, std::int64_t total_iters)
      : Schedule(optimizer, "LinearLR"),
        start_factor_(start_factor),
        end_factor_(end_factor),
        total_iters_(total_iters) {}

 protected:
  double next_lr(std::size_t, double lr) const override {
    if (last_epoch_ == 0) return lr * start_factor_;
    if (is_initial_ || last_epoch_ > total_iters_) return lr;
    const auto rise = end_factor_ - start_factor_;
    return lr * (1.0 + rise / (real(total_iters_) * start_factor_ + real(last_epoch_ - 1) * rise));
  }
  double closed_form_lr(std::size_t group, double) const override {
    const auto passed = real(std::min(total_iters_, last_epoch_));
    return base_lr(group) * (start_factor_ + (end_factor_ - start_factor_) * passed / real(total_iters_));
  }
  void visit_fields(Fields& fields) override {
    fields("start_factor", start_factor_);
    fields("end_factor", end_factor_);
    fields("total_iters", total_iters_);
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    if (!(start_factor_ > 0 && start_factor_ <= 1))
      return fmt::format("'start_factor' is {}; give more than 0 and at most 1", start_factor_);
    if (!(end_factor_ >= 0 && end_factor_ <= 1))
      return fmt::format("'end_factor' is {}; give 0 to 1", end_factor_);
    return {};
  }

 private:
  double start_factor_;
  double end_factor_;
  std::int64_t total_iters_;
};

class ExponentialSchedule : public Schedule {
 public:
  ExponentialSchedule(Optimizer& optimizer, double gamma)
      : Schedule(optimizer, "ExponentialLR"), gamma_(gamma) {}

 protected:
  double next_lr(std::size_t, double lr) const override { return is_initial_ ? lr : lr * gamma_; }
  double closed_form_lr(std::size_t group, double) const override {
    return base_lr(group) * std::pow(gamma_, real(last_epoch_));
  }
  void visit_fields(Fields& fields) override {
    fields("gamma", gamma_);
    Schedule::visit_fields(fields);
  }

 private:
  double gamma_;
};

class PolynomialSchedule : public Schedule {
 public:
  PolynomialSchedule(Optimizer& optimizer, std::int64_t total_iters, double power)
      : Schedule(optimizer, "PolynomialLR"), total_iters_(total_iters), power_(power) {}

 protected:
  double next_lr(std::size_t, double lr) const override {
    if (is_initial_ || last_epoch_ > total_iters_) return lr;
    const auto total = real(total_iters_);
    return lr * std::pow((1.0 - real(last_epoch_) / total) / (1.0 - real(last_epoch_ - 1) / total), power_);
  }
  double closed_form_lr(std::size_t group, double) const override {
    const auto passed = real(std::min(total_iters_, last_epoch_));
    return base_lr(group) * std::pow(1.0 - passed / real(total_iters_), power_);
  }
  void visit_fields(Fields& fields) override {
    fields("total_iters", total_iters_);
    fields("power", power_);
    Schedule::visit_fields(fields);
  }

 private:
  std::int64_t total_iters_;
  double power_;
};

}  // namespace

LambdaLR::LambdaLR(Optimizer& optimizer, LRLambda lr_lambda)
    : LambdaLR(optimizer, for_each_group(optimizer, lr_lambda)) {}
LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<LRLambda> lr_lambda)
    : LRScheduler(Schedule::begun<LambdaSchedule>(optimizer, "LambdaLR", false, std::move(lr_lambda))) {}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, LRLambda lr_lambda)
    : MultiplicativeLR(optimizer, for_each_group(optimizer, lr_lambda)) {}
MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, std::vector<LRLambda> lr_lambda)
    : LRScheduler(
          Schedule::begun<LambdaSchedule>(optimizer, "MultiplicativeLR", true, std::move(lr_lambda))) {}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRScheduler(Schedule::begun<StepSchedule>(optimizer, step_size, gamma)) {}

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
    : LRScheduler(Schedule::begun<MultiStepSchedule>(optimizer, std::move(milestones), gamma)) {}

ConstantLR::ConstantLR(Optimizer& optimizer, double factor, std::int64_t total_iters)
    : LRScheduler(Schedule::begun<ConstantSchedule>(optimizer, factor, total_iters)) {}

LinearLR::LinearLR(Optimizer& optimizer, double start_factor, double end_factor, std::int64_t total_iters)
    : LRScheduler(Schedule::begun<LinearSchedule>(optimizer, start_factor, end_factor, total_iters)) {}

ExponentialLR::ExponentialLR(Optimizer& optimizer, double gamma)
    : LRScheduler(Schedule::begun<ExponentialSchedule>(optimizer, gamma)) {}

PolynomialLR::PolynomialLR(Optimizer& optimizer, std::int64_t total_iters, double power)
    : LRScheduler(Schedule::begun<PolynomialSchedule>(optimizer, total_iters, power)) {}

}  // namespace lockstep::optim
