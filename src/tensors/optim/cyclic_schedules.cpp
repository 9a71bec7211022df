// SPDX-License-Identifier: BSD-3-Clause
// Each arithmetic expression has Python's order of operations, so that the rates are equal to the bit.
#include <cmath>
#include <numbers>

#include "base/caller_place.h"
#include "optim/optimizer_kind.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

constexpr const char* kBetas = "betas";
constexpr const char* kMomentum = "momentum";

Dict dict_of(OptimizerOptions& options) {
  Dict dict;
  Fields fields(dict);
  visit_options(options, fields);
  return dict;
}

// Sets the option that is cycled: the first of `betas`, or `momentum`.
void set_momentum(OptimizerOptions& options, double value) {
  auto dict = dict_of(options);
  Dict changed;
  if (auto* betas = dict.find(kBetas)) {
    std::get<Tuple>(betas->variant()).items.front() = value;
    changed.set(kBetas, std::move(*betas));
  } else if (dict.contains(kMomentum)) {
    changed.set(kMomentum, value);
  }
  Fields fields(changed, "options", /*complete=*/false);
  visit_options(options, fields);
}

// A schedule that cycles the momentum, too.
class MomentumSchedule : public Schedule {
 public:
  MomentumSchedule(Optimizer& optimizer, const char* name, bool cycle_momentum)
      : Schedule(optimizer, name), cycle_momentum_(cycle_momentum) {
    if (!cycle_momentum) return;
    const auto options = dict_of(optimizer.defaults());
    use_beta1_ = options.contains(kBetas);
    if (!use_beta1_ && !options.contains(kMomentum)) {
      throw_error<ArgumentError>(
          "{}: the optimizer has neither momentum nor betas; give cycle_momentum = false", name);
    }
  }

  void update(std::optional<std::int64_t> epoch) override {
    Schedule::update(epoch);
    if (!cycle_momentum_) return;
    for (std::size_t i = 0; i < group_count(); ++i)
      set_momentum(optimizer_.param_groups()[i].options(), next_momentum(i));
  }

 protected:
  virtual double next_momentum(std::size_t group) const = 0;

  void begin_momentum(const PerGroup& base_momentum, const PerGroup& max_momentum) {
    if (!cycle_momentum_) return;
    const auto base = base_momentum.values(fmt::format("{}: base_momentum", name()), group_count());
    const auto most = max_momentum.values(fmt::format("{}: max_momentum", name()), group_count());
    for (std::size_t i = 0; i < group_count(); ++i) {
      entries_->groups[i]["max_momentum"] = most[i];
      entries_->groups[i]["base_momentum"] = base[i];
    }
  }
  void visit_fields(Fields& fields) override {
    auto use_beta1 = use_beta1_;
    fields("cycle_momentum", cycle_momentum_);
    if (cycle_momentum_) fields("use_beta1", use_beta1);
    if (use_beta1 != use_beta1_)
      throw_error<CheckpointError>("{}: it is the state over an optimizer of another kind (use_beta1)",
                                   name());
    Schedule::visit_fields(fields);
  }

  bool cycle_momentum_;
  bool use_beta1_ = false;
};

class CyclicSchedule : public MomentumSchedule {
 public:
  CyclicSchedule(Optimizer& optimizer, const CyclicLROptions& options)
      : MomentumSchedule(optimizer, "CyclicLR", options.cycle_momentum),
        max_lrs_(options.max_lr.values("CyclicLR: max_lr", group_count())),
        mode_(options.mode.text()),
        gamma_(options.gamma),
        scale_fn_(options.scale_fn),
        scale_mode_(options.scale_mode.text()) {
    const auto base_lrs = options.base_lr.values("CyclicLR: base_lr", group_count());
    const auto up = real(options.step_size_up);
    total_size_ = up + (options.step_size_down ? real(*options.step_size_down) : up);
    step_ratio_ = up / total_size_;
    choose_scale_mode();
    if (cycle_momentum_) {
      base_momentums_ = options.base_momentum.values("CyclicLR: base_momentum", group_count());
      max_momentums_ = options.max_momentum.values("CyclicLR: max_momentum", group_count());
    }
    check();
    begin_momentum(options.base_momentum, options.max_momentum);
    for (std::size_t i = 0; i < group_count(); ++i) optimizer.param_groups()[i].options().set_lr(base_lrs[i]);
    cycle_base_lrs_ = base_lrs;
  }

 protected:
  void begin() override {
    MomentumSchedule::begin();
    base_lrs_ = cycle_base_lrs_;  // only now, as in Python: the initial step has the initial rates
  }
  double next_lr(std::size_t group, double) const override {
    return base_lr(group) + (max_lrs_.at(group) - base_lr(group)) * height() * scale();
  }
  double next_momentum(std::size_t group) const override {
    const auto most = max_momentums_.at(group);
    return most - (most - base_momentums_.at(group)) * height() * scale();
  }
  void visit_fields(Fields& fields) override {
    fields("max_lrs", max_lrs_);
    fields("total_size", total_size_);
    fields("step_ratio", step_ratio_);
    fields("mode", mode_);
    fields("gamma", gamma_);
    fields("scale_mode", scale_mode_);
    fields.constant("_scale_fn_custom", None());
    fields.read("_scale_fn_custom", [](const Value& state) {
      if (!state.is<None>())
        throw_error<CheckpointError>("it has the attributes of a Python object; make it None");
    });
    MomentumSchedule::visit_fields(fields);
    if (!cycle_momentum_) return;
    fields("base_momentums", base_momentums_);
    fields("max_momentums", max_momentums_);
  }
  std::string problem() const override {
    if (!(total_size_ > 0) || !(step_ratio_ > 0 && step_ratio_ <= 1))
      return "'step_size_up' must be at least 1 and 'step_size_down' at least 0";
    const bool is_known = mode_ == "triangular" || mode_ == "triangular2" || mode_ == "exp_range";
    if (!scale_fn_ && !is_known) {
      return fmt::format("'mode' is '{}'; give 'triangular', 'triangular2', 'exp_range' or a scale_fn",
                         mode_);
    }
    if (scale_mode_ != "cycle" && scale_mode_ != "iterations")
      return fmt::format("'scale_mode' is '{}'; give 'cycle' or 'iterations'", scale_mode_);
    auto text = count_problem("max_lrs", max_lrs_.size());
    if (text.empty() && cycle_momentum_)
      text = count_problem("base_momentums", std::min(base_momentums_.size(), max_momentums_.size()));
    return text;
  }

 private:
  void choose_scale_mode() {
    if (!scale_fn_) scale_mode_ = mode_ == "exp_range" ? "iterations" : "cycle";
  }
  double cycle() const { return std::floor(1 + real(last_epoch_) / total_size_); }
  double height() const {
    const auto x = 1.0 + real(last_epoch_) / total_size_ - cycle();
    return x <= step_ratio_ ? x / step_ratio_ : (x - 1) / (step_ratio_ - 1);
  }
  double scale() const {
    const auto x = scale_mode_ == "cycle" ? cycle() : real(last_epoch_);
    if (scale_fn_) return scale_fn_(x);
    if (mode_ == "triangular2") return 1 / std::pow(2.0, x - 1);
    return mode_ == "exp_range" ? std::pow(gamma_, x) : 1.0;
  }

  std::vector<double> max_lrs_;
  double total_size_ = 0;
  double step_ratio_ = 0;
  std::string mode_;
  double gamma_;
  std::function<double(double)> scale_fn_;
  std::string scale_mode_;
  std::vector<double> base_momentums_;
  std::vector<double> max_momentums_;
  std::vector<double> cycle_base_lrs_;
};

// A part of the cycle. The strings name entries of the parameter groups.
struct Phase {
  double end_step;
  std::string start_lr, end_lr, start_momentum, end_momentum;
};

std::vector<Phase> phases_of(const OneCycleLROptions& options, double total) {
  const auto up = options.pct_start * total - 1;
  if (options.three_phase) {
    return {{up, "initial_lr", "max_lr", "max_momentum", "base_momentum"},
            {2 * options.pct_start * total - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"},
            {total - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"}};
  }
  return {{up, "initial_lr", "max_lr", "max_momentum", "base_momentum"},
          {total - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"}};
}

class OneCycleSchedule : public MomentumSchedule {
 public:
  OneCycleSchedule(Optimizer& optimizer, const OneCycleLROptions& options)
      : MomentumSchedule(optimizer, "OneCycleLR", options.cycle_momentum),
        total_steps_(total_of(options)),
        phases_(phases_of(options, real(total_steps_))),
        anneal_strategy_(options.anneal_strategy.text()) {
    if (!(options.pct_start >= 0 && options.pct_start <= 1))
      throw_error<ArgumentError>("OneCycleLR: pct_start = {}; give 0 to 1", options.pct_start);
    check();
    const auto max_lrs = options.max_lr.values("OneCycleLR: max_lr", group_count());
    for (std::size_t i = 0; i < group_count(); ++i) {
      auto& entries = entries_->groups[i];
      entries["initial_lr"] = max_lrs[i] / options.div_factor;
      entries["max_lr"] = max_lrs[i];
      entries["min_lr"] = entries["initial_lr"] / options.final_div_factor;
    }
    begin_momentum(options.base_momentum, options.max_momentum);
  }

  void update(std::optional<std::int64_t> epoch) override {
    const auto next = epoch ? *epoch : last_epoch_ + 1;
    if (next > total_steps_) {
      throw_error<ArgumentError>("OneCycleLR: step {} of {} total_steps; give more total_steps or stop", next,
                                 total_steps_);
    }
    MomentumSchedule::update(epoch);
  }

 protected:
  double next_lr(std::size_t group, double) const override {
    return annealed(group, &Phase::start_lr, &Phase::end_lr);
  }
  double next_momentum(std::size_t group) const override {
    return annealed(group, &Phase::start_momentum, &Phase::end_momentum);
  }
  void visit_fields(Fields& fields) override {
    MomentumSchedule::visit_fields(fields);
    fields("total_steps", total_steps_);
    fields.constant("_schedule_phases", phase_list());
    fields.read("_schedule_phases", [this](const Value& list) { read_phases(list); });
    fields("_anneal_func_type", anneal_strategy_);
  }
  std::string problem() const override {
    if (phases_.empty()) return "'_schedule_phases' is empty";
    if (anneal_strategy_ == "cos" || anneal_strategy_ == "linear") return {};
    return fmt::format("the anneal_strategy is '{}'; give 'cos' or 'linear'", anneal_strategy_);
  }

 private:
  static std::int64_t total_of(const OneCycleLROptions& options) {
    const auto positive = [](const char* name, std::int64_t value) {
      if (value < 1) throw_error<ArgumentError>("OneCycleLR: {} = {}; give at least 1", name, value);
      return value;
    };
    if (options.total_steps) return positive("total_steps", *options.total_steps);
    if (!options.epochs || !options.steps_per_epoch)
      throw_error<ArgumentError>("OneCycleLR: give total_steps, or epochs and steps_per_epoch");
    return positive("epochs", *options.epochs) * positive("steps_per_epoch", *options.steps_per_epoch);
  }

  double annealed(std::size_t group, std::string Phase::*from, std::string Phase::*to) const {
    check_group(group);
    const auto step = real(last_epoch_);
    std::size_t i = 0;
    while (i + 1 < phases_.size() && step > phases_[i].end_step) ++i;
    const auto start_step = i == 0 ? 0.0 : phases_[i - 1].end_step;
    const auto share = (step - start_step) / (phases_[i].end_step - start_step);
    const auto& entries = entries_->groups.at(group);
    const auto start = entries.at(phases_[i].*from);
    const auto end = entries.at(phases_[i].*to);
    if (anneal_strategy_ == "linear") return (end - start) * share + start;
    return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
  }

  List phase_list() const {
    List list;
    for (const auto& phase : phases_) {
      const bool is_last = &phase == &phases_.back();  // an int in Python
      list.items.emplace_back(Dict{
          {"end_step", is_last ? Value(static_cast<std::int64_t>(phase.end_step)) : Value(phase.end_step)},
          {"start_lr", phase.start_lr},
          {"end_lr", phase.end_lr},
          {"start_momentum", phase.start_momentum},
          {"end_momentum", phase.end_momentum}});
    }
    return list;
  }

  void read_phases(const Value& list) {
    phases_.clear();
    for (const auto& item : list.as_items()) {
      const auto text = [&](const char* name) {
        const auto& entry = item[name].as_string();
        for (const auto& entries : entries_->groups)
          if (!entries.contains(entry))
            throw_error<CheckpointError>("there is no entry '{}' in the parameter groups", entry);
        return entry;
      };
      auto& phase =
          phases_.emplace_back(Phase{serialize::number_of(item["end_step"]), text("start_lr"), text("end_lr"),
                                     item["start_momentum"].as_string(), item["end_momentum"].as_string()});
      if (!cycle_momentum_) continue;
      phase.start_momentum = text("start_momentum");
      phase.end_momentum = text("end_momentum");
    }
  }

  std::int64_t total_steps_;
  std::vector<Phase> phases_;
  std::string anneal_strategy_;
};

}  // namespace

CyclicLR::CyclicLR(Optimizer& optimizer, const CyclicLROptions& options, std::source_location where)
    : LRScheduler(Schedule::begun<CyclicSchedule>((CallerPlace(where), optimizer), options)) {}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options, std::source_location where)
    : LRScheduler(Schedule::begun<OneCycleSchedule>((CallerPlace(where), optimizer), options)) {}

}  // namespace lockstep::optim
