// SPDX-License-Identifier: BSD-3-Clause
// Each arithmetic expression has Python's order of operations, so that the rates are equal to the bit.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

using std::numbers::pi;
using torch::optim::Optimizer;

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
  std::string problem() const override {
    return gamma_ > 0 ? "" : fmt::format("'gamma' is {}; give more than 0", gamma_);
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
  std::string problem() const override {
    return total_iters_ < 1 ? fmt::format("'total_iters' is {}; give at least 1", total_iters_) : "";
  }

 private:
  std::int64_t total_iters_;
  double power_;
};

class CosineSchedule : public Schedule {
 public:
  CosineSchedule(Optimizer& optimizer, std::int64_t T_max, double eta_min)
      : Schedule(optimizer, "CosineAnnealingLR"), T_max_(T_max), eta_min_(eta_min) {}

 protected:
  double next_lr(std::size_t group, double lr) const override {
    if (is_initial_) return lr;
    const auto half = real(T_max_);
    if ((last_epoch_ - 1 - T_max_) % (2 * T_max_) == 0)
      return lr + (base_lr(group) - eta_min_) * (1 - std::cos(pi / half)) / 2;
    return (1 + std::cos(pi * real(last_epoch_) / half)) / (1 + std::cos(pi * real(last_epoch_ - 1) / half)) *
               (lr - eta_min_) +
           eta_min_;
  }
  double closed_form_lr(std::size_t group, double) const override {
    return eta_min_ + (base_lr(group) - eta_min_) * (1 + std::cos(pi * real(last_epoch_) / real(T_max_))) / 2;
  }
  void visit_fields(Fields& fields) override {
    fields("T_max", T_max_);
    fields("eta_min", eta_min_);
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    return T_max_ < 1 ? fmt::format("'T_max' is {}; give at least 1", T_max_) : "";
  }

 private:
  std::int64_t T_max_;
  double eta_min_;
};

class WarmRestartsSchedule : public Schedule {
 public:
  WarmRestartsSchedule(Optimizer& optimizer, std::int64_t T_0, std::int64_t T_mult, double eta_min)
      : Schedule(optimizer, "CosineAnnealingWarmRestarts"),
        T_0_(T_0),
        T_i_(T_0),
        T_mult_(T_mult),
        eta_min_(eta_min) {}

  // Python counts no steps here.
  void step() override {
    if (last_epoch_ < 0) return go_to(0);
    T_cur_ += 1;
    if (T_cur_ >= real(T_i_)) {
      T_cur_ = std::fmod(T_cur_, real(T_i_));
      T_i_ *= T_mult_;
    }
    update(std::nullopt);
  }

  void go_to(double epoch) {
    if (!(epoch >= 0)) throw_error<ArgumentError>("{}: step(): epoch = {} is below 0", name(), epoch);
    const auto first = real(T_0_);
    if (epoch < first) {
      T_i_ = T_0_;
      T_cur_ = epoch;
    } else if (T_mult_ == 1) {
      T_cur_ = std::fmod(epoch, first);
    } else {
      const auto base = real(T_mult_);
      const auto n = std::trunc(std::log(epoch / first * (base - 1) + 1) / std::log(base));
      T_cur_ = epoch - first * (std::pow(base, n) - 1) / (base - 1);
      T_i_ = T_0_ * static_cast<std::int64_t>(std::pow(base, n));
    }
    update(static_cast<std::int64_t>(std::floor(epoch)));
  }

 protected:
  double next_lr(std::size_t group, double) const override {
    return eta_min_ + (base_lr(group) - eta_min_) * (1 + std::cos(pi * T_cur_ / real(T_i_))) / 2;
  }
  void visit_fields(Fields& fields) override {
    fields("T_0", T_0_);
    fields("T_i", T_i_);
    fields("T_mult", T_mult_);
    fields("eta_min", eta_min_);
    const bool is_whole = T_cur_ == std::floor(T_cur_);
    fields.constant("T_cur", is_whole ? Value(static_cast<std::int64_t>(T_cur_)) : Value(T_cur_));
    fields.read("T_cur", [this](const Value& value) { from_value(value, T_cur_); });
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    if (T_0_ < 1) return fmt::format("'T_0' is {}; give at least 1", T_0_);
    if (T_i_ < 1) return fmt::format("'T_i' is {}, below 1", T_i_);
    return T_mult_ < 1 ? fmt::format("'T_mult' is {}; give at least 1", T_mult_) : "";
  }

 private:
  std::int64_t T_0_;
  std::int64_t T_i_;
  std::int64_t T_mult_;
  double eta_min_;
  double T_cur_ = -1;
};

class SwaSchedule : public Schedule {
 public:
  SwaSchedule(Optimizer& optimizer, const PerGroup& swa_lr, std::int64_t anneal_epochs,
              Literal<AnnealStrategy> anneal_strategy)
      : Schedule(optimizer, "SWALR"),
        anneal_epochs_(anneal_epochs),
        anneal_strategy_(anneal_strategy.text()) {
    const auto rates = swa_lr.values("SWALR: swa_lr", group_count());
    for (std::size_t i = 0; i < rates.size(); ++i) entries_->groups[i]["swa_lr"] = rates[i];
  }

 protected:
  double next_lr(std::size_t group, double lr) const override {
    check_group(group);
    const auto step = anneal_epochs_ == 0 ? std::max<std::int64_t>(1, step_count_ - 1) : step_count_ - 1;
    const auto swa_lr = entries_->groups.at(group).at("swa_lr");
    const auto before = share(step - 1);
    const auto initial_lr = before == 1 ? swa_lr : (lr - before * swa_lr) / (1 - before);
    const auto alpha = share(step);
    return swa_lr * alpha + initial_lr * (1 - alpha);
  }
  void visit_fields(Fields& fields) override {
    fields("anneal_epochs", anneal_epochs_);
    fields("_anneal_strategy", anneal_strategy_);
    Schedule::visit_fields(fields);
  }
  std::string problem() const override {
    if (anneal_epochs_ < 0) return fmt::format("'anneal_epochs' is {}; give 0 or more", anneal_epochs_);
    if (anneal_strategy_ != "cos" && anneal_strategy_ != "linear")
      return fmt::format("'anneal_strategy' is '{}'; give 'cos' or 'linear'", anneal_strategy_);
    return {};
  }

 private:
  double share(std::int64_t step) const {
    const auto epochs = std::max<std::int64_t>(1, anneal_epochs_);
    const auto t = std::clamp(real(step) / real(epochs), 0.0, 1.0);
    return anneal_strategy_ == "cos" ? (1 - std::cos(pi * t)) / 2 : t;
  }

  std::int64_t anneal_epochs_;
  std::string anneal_strategy_;
};

}  // namespace

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options, std::source_location where)
    : LRScheduler(
          Schedule::begun<StepSchedule>((CallerPlace(where), optimizer), options.step_size, options.gamma)) {}

MultiStepLR::MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options, std::source_location where)
    : LRScheduler(Schedule::begun<MultiStepSchedule>((CallerPlace(where), optimizer), options.milestones,
                                                     options.gamma)) {}

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options, std::source_location where)
    : LRScheduler(Schedule::begun<ConstantSchedule>((CallerPlace(where), optimizer), options.factor,
                                                    options.total_iters)) {}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options, std::source_location where)
    : LRScheduler(Schedule::begun<LinearSchedule>((CallerPlace(where), optimizer), options.start_factor,
                                                  options.end_factor, options.total_iters)) {}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options,
                             std::source_location where)
    : LRScheduler(Schedule::begun<ExponentialSchedule>((CallerPlace(where), optimizer), options.gamma)) {}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options,
                           std::source_location where)
    : LRScheduler(Schedule::begun<PolynomialSchedule>((CallerPlace(where), optimizer), options.total_iters,
                                                      options.power)) {}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options,
                                     std::source_location where)
    : LRScheduler(
          Schedule::begun<CosineSchedule>((CallerPlace(where), optimizer), options.T_max, options.eta_min)) {}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer,
                                                         const CosineAnnealingWarmRestartsOptions& options,
                                                         std::source_location where)
    : LRScheduler(Schedule::begun<WarmRestartsSchedule>((CallerPlace(where), optimizer), options.T_0,
                                                        options.T_mult, options.eta_min)) {}
void CosineAnnealingWarmRestarts::step(double epoch, std::source_location where) {
  const CallerPlace place(where);
  dynamic_cast<WarmRestartsSchedule&>(*schedule_).go_to(epoch);
}

SWALR::SWALR(Optimizer& optimizer, const SWALROptions& options, std::source_location where)
    : LRScheduler(Schedule::begun<SwaSchedule>((CallerPlace(where), optimizer), options.swa_lr,
                                               options.anneal_epochs, options.anneal_strategy)) {}

}  // namespace lockstep::optim
