// SPDX-License-Identifier: BSD-3-Clause
// The schedulers beside Python's with drawn arguments: what every step leaves in the optimizer, the step at
// which both refuse, and states that go from one to the other.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/optim/lr_scheduler.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using TorchOptimizer = torch::optim::Optimizer;
constexpr std::int64_t kSteps = 24;

template <typename Optimizer, typename Options>
std::unique_ptr<TorchOptimizer> make_optimizer(const Value& rates, const Options& defaults) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& rate : rates.as_items()) {
    auto options = std::make_unique<Options>(defaults);
    options->set_lr(rate.as_double());
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1, 1})}, std::move(options));
  }
  return std::make_unique<Optimizer>(std::move(groups), defaults);
}

std::unique_ptr<TorchOptimizer> make_optimizer(const std::string& kind, const Value& rates, bool fused) {
  using namespace torch::optim;
  const auto sgd = optim::FusedSGDOptions(0.1).momentum(0.5);
  if (fused && kind == "SGD") return make_optimizer<optim::FusedSGD>(rates, sgd);
  if (fused && kind == "Adam") return make_optimizer<optim::FusedAdam>(rates, optim::FusedAdamOptions(0.1));
  if (fused && kind == "AdamW")
    return make_optimizer<optim::FusedAdamW>(rates, optim::FusedAdamWOptions(0.1));
  if (kind == "SGD") return make_optimizer<SGD>(rates, SGDOptions(0.1).momentum(0.5));
  if (kind == "Adam") return make_optimizer<Adam>(rates, AdamOptions(0.1));
  if (kind == "AdamW") return make_optimizer<AdamW>(rates, AdamWOptions(0.1));
  if (kind == "RMSprop") return make_optimizer<RMSprop>(rates, RMSpropOptions(0.1).momentum(0.5));
  if (kind == "NAdam") return make_optimizer<optim::NAdam>(rates, optim::NAdam::GroupOptions(0.1));
  if (kind == "Muon") return make_optimizer<optim::Muon>(rates, optim::Muon::GroupOptions(0.1));
  return make_optimizer<Adagrad>(rates, AdagradOptions(0.1));
}

std::function<double(double)> function_of(const Value& spec) {
  const auto p = spec.as_items()[1].as_double();
  if (spec.as_items()[0].as_string() == "power") return [p](double x) { return std::pow(p, x); };
  return [p](double x) { return 1 / (1 + p * x); };
}

// The arguments of a scheduler that Python gave.
class Arguments {
 public:
  explicit Arguments(const Value& spec) : dict_(spec["arguments"].as_dict()) {}

  double number(const char* name, double otherwise = 0) const {
    const auto* value = dict_.find(name);
    return value ? value->as_double() : otherwise;
  }
  std::int64_t whole(const char* name, std::int64_t otherwise = 0) const {
    const auto* value = dict_.find(name);
    return value ? value->as_int() : otherwise;
  }
  std::optional<std::int64_t> maybe(const char* name) const {
    return dict_.contains(name) ? std::optional(whole(name)) : std::nullopt;
  }
  bool flag(const char* name, bool otherwise) const {
    const auto* value = dict_.find(name);
    return value ? value->as_bool() : otherwise;
  }
  template <typename Enum>
  Literal<Enum> literal(const char* name, Literal<Enum> otherwise) const {
    const auto* value = dict_.find(name);
    return value ? Literal(parse_literal<Enum>(value->as_string()).value()) : otherwise;
  }
  optim::PerGroup per_group(const char* name, double otherwise = 0) const {
    const auto* value = dict_.find(name);
    if (value == nullptr || !value->is<List>()) return number(name, otherwise);
    std::vector<double> numbers;
    for (const auto& item : value->as_items()) numbers.push_back(item.as_double());
    return numbers;
  }
  std::vector<std::int64_t> milestones() const {
    std::vector<std::int64_t> numbers;
    for (const auto& item : dict_.at("milestones").as_items()) numbers.push_back(item.as_int());
    return numbers;
  }
  std::function<double(double)> scale_fn() const {
    return dict_.contains("scale_fn") ? function_of(dict_.at("scale_fn")) : nullptr;
  }
  template <typename Scheduler>
  Scheduler with_lambdas(TorchOptimizer& optimizer) const {
    std::vector<optim::LrLambda> functions;
    for (const auto& item : dict_.at("lr_lambda").as_items()) functions.emplace_back(function_of(item));
    if (functions.size() == 1) return Scheduler(optimizer, functions[0]);
    return Scheduler(optimizer, functions);
  }

 private:
  const Dict& dict_;
};

optim::LRScheduler make_simple(TorchOptimizer& optimizer, const std::string& kind, const Arguments& a) {
  using namespace optim;
  if (kind == "LambdaLR") return a.with_lambdas<LambdaLR>(optimizer);
  if (kind == "MultiplicativeLR") return a.with_lambdas<MultiplicativeLR>(optimizer);
  if (kind == "StepLR") return StepLR(optimizer, a.whole("step_size"), a.number("gamma", 0.1));
  if (kind == "MultiStepLR") return MultiStepLR(optimizer, a.milestones(), a.number("gamma", 0.1));
  if (kind == "ConstantLR")
    return ConstantLR(optimizer, a.number("factor", 1.0 / 3), a.whole("total_iters", 5));
  if (kind == "LinearLR") {
    return LinearLR(optimizer, a.number("start_factor", 1.0 / 3), a.number("end_factor", 1),
                    a.whole("total_iters", 5));
  }
  if (kind == "ExponentialLR") return ExponentialLR(optimizer, a.number("gamma"));
  if (kind == "PolynomialLR") return PolynomialLR(optimizer, a.whole("total_iters", 5), a.number("power", 1));
  if (kind == "CosineAnnealingLR") return CosineAnnealingLR(optimizer, a.whole("T_max"), a.number("eta_min"));
  if (kind == "CosineAnnealingWarmRestarts") {
    return CosineAnnealingWarmRestarts(optimizer, a.whole("T_0"), a.whole("T_mult", 1), a.number("eta_min"));
  }
  if (kind == "CyclicLR") {
    return CyclicLR(optimizer, {.base_lr = a.per_group("base_lr"),
                                .max_lr = a.per_group("max_lr"),
                                .step_size_up = a.whole("step_size_up", 2000),
                                .step_size_down = a.maybe("step_size_down"),
                                .mode = a.literal<CyclicMode>("mode", "triangular"),
                                .gamma = a.number("gamma", 1),
                                .scale_fn = a.scale_fn(),
                                .scale_mode = a.literal<ScaleMode>("scale_mode", "cycle"),
                                .cycle_momentum = a.flag("cycle_momentum", true),
                                .base_momentum = a.per_group("base_momentum", 0.8),
                                .max_momentum = a.per_group("max_momentum", 0.9)});
  }
  if (kind == "OneCycleLR") {
    return OneCycleLR(optimizer, {.max_lr = a.per_group("max_lr"),
                                  .total_steps = a.maybe("total_steps"),
                                  .epochs = a.maybe("epochs"),
                                  .steps_per_epoch = a.maybe("steps_per_epoch"),
                                  .pct_start = a.number("pct_start", 0.3),
                                  .anneal_strategy = a.literal<AnnealStrategy>("anneal_strategy", "cos"),
                                  .cycle_momentum = a.flag("cycle_momentum", true),
                                  .base_momentum = a.per_group("base_momentum", 0.85),
                                  .max_momentum = a.per_group("max_momentum", 0.95),
                                  .div_factor = a.number("div_factor", 25),
                                  .final_div_factor = a.number("final_div_factor", 1e4),
                                  .three_phase = a.flag("three_phase", false)});
  }
  return SWALR(optimizer, a.per_group("swa_lr"), a.whole("anneal_epochs", 10),
               a.literal<AnnealStrategy>("anneal_strategy", "cos"));
}

optim::LRScheduler make_scheduler(TorchOptimizer& optimizer, const Value& spec) {
  const auto& kind = spec["kind"].as_string();
  std::vector<optim::LRScheduler> parts;
  if (const auto* specs = spec.as_dict().find("schedulers")) {
    for (const auto& part : specs->as_items()) parts.push_back(make_scheduler(optimizer, part));
  }
  const Arguments arguments(spec);
  if (kind == "ChainedScheduler") return optim::ChainedScheduler(parts);
  if (kind == "SequentialLR") return optim::SequentialLR(optimizer, parts, arguments.milestones());
  return make_simple(optimizer, kind, arguments);
}

List numbers(const std::vector<double>& values) {
  return List(std::vector<Value>(values.begin(), values.end()));
}

double momentum_of(const Value& group) {
  if (const auto* betas = group.as_dict().find("betas")) return betas->as_items()[0].as_double();
  const auto* momentum = group.as_dict().find("momentum");
  return momentum ? momentum->as_double() : 0;
}

class ScheduleRun {
 public:
  ScheduleRun(const Value& one, bool fused)
      : case_(one), optimizer_(make_optimizer(one["optimizer"].as_string(), one["rates"], fused)) {
    for (const auto& spec : one["schedulers"].as_items())
      schedulers_.push_back(make_scheduler(*optimizer_, spec));
  }

  void load(const Value& state) {
    load_state_dict(*optimizer_, state["optimizer"].as_dict());
    for (std::size_t i = 0; i < schedulers_.size(); ++i)
      schedulers_[i].load_state_dict(state["schedulers"].as_items()[i].as_dict());
  }

  // The same as Python's script, until a step fails.
  List steps(std::int64_t first, std::int64_t last) {
    List steps;
    for (auto step = first; step < last; ++step) {
      if (const auto* change = case_["changes"].as_dict().find(step)) set_rates(*change);
      try {
        for (auto& scheduler : schedulers_) scheduler.step();
      } catch (const ArgumentError&) {
        failed_at = step;
        break;
      }
      List rates;
      List lasts;
      List momenta;
      const auto groups = state_dict(*optimizer_).at("param_groups");
      for (const auto& group : groups.as_items()) {
        rates.items.push_back(group["lr"]);
        momenta.items.emplace_back(momentum_of(group));
      }
      for (const auto& scheduler : schedulers_) lasts.items.emplace_back(numbers(scheduler.get_last_lr()));
      steps.items.emplace_back(List{rates, lasts, momenta});
    }
    return steps;
  }

  List states() const {
    List states;
    for (const auto& scheduler : schedulers_) states.items.emplace_back(scheduler.state_dict());
    return states;
  }
  Dict state() const { return {{"optimizer", state_dict(*optimizer_)}, {"schedulers", states()}}; }

  std::optional<std::int64_t> failed_at;

 private:
  void set_rates(const Value& rates) {
    for (std::size_t i = 0; i < rates.as_items().size(); ++i)
      optimizer_->param_groups()[i].options().set_lr(rates.as_items()[i].as_double());
  }

  const Value& case_;
  std::unique_ptr<TorchOptimizer> optimizer_;
  std::vector<optim::LRScheduler> schedulers_;
};

// Without what Python adds to a SequentialLR or ChainedScheduler inside another one.
Value comparable(Value state) {
  auto& dict = state.as_dict();
  if (!dict.contains("_schedulers")) return state;
  dict.erase("_step_count");
  dict.erase("_is_initial");
  List compared;
  for (const auto& part : dict["_schedulers"].as_items()) compared.items.push_back(comparable(part));
  dict.set("_schedulers", std::move(compared));
  return state;
}

void expect_equal_states(const List& ours, const Value& theirs) {
  for (std::size_t i = 0; i < ours.items.size(); ++i) {
    const auto left = comparable(ours.items[i]);
    const auto right = comparable(theirs.as_items()[i]);
    EXPECT_TRUE(equal(left, right)) << repr(left) << "\n" << repr(right);
  }
}

void expect_equal_steps(const List& ours, const std::vector<Value>& theirs, std::size_t first) {
  for (std::size_t i = first; i < theirs.size(); ++i) {
    ASSERT_LT(i - first, ours.items.size()) << "Python takes step " << i;
    ASSERT_TRUE(equal(ours.items[i - first], theirs[i]))
        << "step " << i << ": " << repr(ours.items[i - first]) << "\n"
        << repr(theirs[i]);
  }
  EXPECT_EQ(ours.items.size() + first, theirs.size());
}

TEST(LRSchedulers, MatchPythonBitForBitAndExchangeTheirState) {
  const TempFolder folder;
  const auto file = folder.file("cases.pt");
  run_python("parity/schedulers.py", {.args = {"draw", file}});
  const auto cases = load(file);
  List halves;
  for (std::size_t seed = 0; seed < cases.as_items().size(); ++seed) {
    const auto& one = cases.as_items()[seed];
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + repr(one["schedulers"]));
    const auto& expected = one["steps"].as_items();
    ScheduleRun whole(one, seed % 2 == 0);
    auto steps = whole.steps(0, kSteps / 2);
    halves.items.emplace_back(whole.failed_at ? Value() : Value(whole.state()));
    if (!whole.failed_at) {
      const auto rest = whole.steps(kSteps / 2, kSteps);
      steps.items.insert(steps.items.end(), rest.items.begin(), rest.items.end());
    }
    expect_equal_steps(steps, expected, 0);
    if (one["failed_at"].is<None>()) expect_equal_states(whole.states(), one["end"]["schedulers"]);
    if (halves.items.back().is<None>()) continue;

    ScheduleRun from_python(one, seed % 2 == 0);
    from_python.load(one["half"]);
    expect_equal_steps(from_python.steps(kSteps / 2, kSteps), expected, kSteps / 2);
  }
  save(halves, folder.file("halves.pt"));
  run_python("parity/schedulers.py", {.args = {"continue", file, folder.file("halves.pt")}});
}

}  // namespace
}  // namespace lockstep::testing
