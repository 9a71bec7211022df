// SPDX-License-Identifier: BSD-3-Clause
// StepLR beside Python's: every rate after every step, and states that go from one to the other.
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr std::int64_t kHalf = 10;
constexpr std::int64_t kWhole = 24;

List cases() {
  const auto one = [](const char* optimizer, List rates, List schedulers, Dict changes = {}) {
    return Dict{{"optimizer", optimizer},
                {"rates", std::move(rates)},
                {"schedulers", std::move(schedulers)},
                {"changes", std::move(changes)}};
  };
  return {one("SGD", {0.3}, {List{3}}),
          one("SGD", {0.05, 0.7}, {List{1, 0.9}}),
          one("Adam", {0.002, 0.3}, {List{4, 0.7}}, {{3, List{0.11, 0.013}}, {13, List{0.9, 0.8}}}),
          one("AdamW", {0.3, 0.1, 0.7}, {List{2, 1.1}, List{5, 0.3}}, {{kHalf, List{0.01, 0.2, 0.3}}}),
          one("RMSprop", {0.3}, {List{kHalf, 0.7}}),
          one("Adagrad", {0.3}, {List{100, 0.5}}),
          one("LBFGS", {0.7}, {List{3, 0.9}})};
}

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make(const Value& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& rate : rates.as_items()) {
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})},
                        std::make_unique<Options>(rate.as_double()));
  }
  return std::make_unique<Optimizer>(std::move(groups), Options(0.1));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Value& rates,
                                                        bool fused) {
  using namespace torch::optim;
  if (fused && name == "SGD") return make<optim::FusedSGD, optim::FusedSGDOptions>(rates);
  if (fused && name == "Adam") return make<optim::FusedAdam, optim::FusedAdamOptions>(rates);
  if (fused && name == "AdamW") return make<optim::FusedAdamW, optim::FusedAdamWOptions>(rates);
  if (name == "SGD") return make<SGD, SGDOptions>(rates);
  if (name == "Adam") return make<Adam, AdamOptions>(rates);
  if (name == "AdamW") return make<AdamW, AdamWOptions>(rates);
  if (name == "RMSprop") return make<RMSprop, RMSpropOptions>(rates);
  if (name == "Adagrad") return make<Adagrad, AdagradOptions>(rates);
  return make<LBFGS, LBFGSOptions>(rates);
}

class Twin {
 public:
  Twin(const Value& one, bool fused)
      : changes_(one["changes"].as_dict()),
        optimizer_(make_optimizer(one["optimizer"].as_string(), one["rates"], fused)) {
    for (const auto& arguments : one["schedulers"].as_items()) {
      const auto& items = arguments.as_items();
      if (items.size() == 1) schedulers_.emplace_back(*optimizer_, items[0].as_int());
      if (items.size() == 2) schedulers_.emplace_back(*optimizer_, items[0].as_int(), items[1].as_double());
    }
  }

  void load(const Value& state) {
    load_state_dict(*optimizer_, state["optimizer"].as_dict());
    for (std::size_t i = 0; i < schedulers_.size(); ++i) {
      schedulers_[i].load_state_dict(state["schedulers"].as_items()[i].as_dict());
    }
  }

  // The same as Python's script: the rates after each step of each scheduler, and the states.
  Dict run(std::int64_t before, std::int64_t until) {
    List rates;
    for (auto step = before; step < until; ++step) {
      if (const auto* change = changes_.find(step)) set_rates(*change);
      for (auto& scheduler : schedulers_) {
        scheduler.step();
        const auto& last = scheduler.get_last_lr();
        rates.items.emplace_back(List(std::vector<Value>(last.begin(), last.end())));
      }
    }
    List states;
    for (const auto& scheduler : schedulers_) states.items.emplace_back(scheduler.state_dict());
    return {{"rates", std::move(rates)}, {"optimizer", state_dict(*optimizer_)}, {"schedulers", states}};
  }

 private:
  void set_rates(const Value& rates) {
    for (std::size_t i = 0; i < rates.as_items().size(); ++i) {
      optimizer_->param_groups()[i].options().set_lr(rates.as_items()[i].as_double());
    }
  }

  Dict changes_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::deque<optim::StepLR> schedulers_;
};

void expect_same(const Value& ours, const Value& theirs) {
  EXPECT_TRUE(equal(ours["rates"], theirs["rates"])) << repr(ours["rates"]) << repr(theirs["rates"]);
  EXPECT_TRUE(equal(ours["schedulers"], theirs["schedulers"]))
      << repr(ours["schedulers"]) << repr(theirs["schedulers"]);
  for (std::size_t i = 0; i < theirs["optimizer"]["param_groups"].as_items().size(); ++i) {
    EXPECT_EQ(ours["optimizer"]["param_groups"].as_items()[i]["lr"].as_double(),
              theirs["optimizer"]["param_groups"].as_items()[i]["lr"].as_double());
  }
}

class Steps : public ::testing::TestWithParam<bool> {
 protected:
  Value in_python(std::int64_t before, std::int64_t until, const std::string& from = "-") const {
    run_python("parity/step_lr.py", {.args = {folder_.file("cases.pt"), folder_.file("out.pt"),
                                              std::to_string(before), std::to_string(until), from}});
    return load(folder_.file("out.pt"));
  }
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Optimizers, Steps, ::testing::Values(false, true),
                         [](const auto& chosen) { return chosen.param ? "Fused" : "OfLibTorch"; });

TEST_P(Steps, MatchPythonAndExchangeItsState) {
  const auto all = cases();
  save(all, folder_.file("cases.pt"));
  const auto whole = in_python(0, kWhole);
  const auto first = in_python(0, kHalf);
  const auto second = in_python(kHalf, kWhole, folder_.file("out.pt"));
  List halves;
  for (std::size_t i = 0; i < all.items.size(); ++i) {
    SCOPED_TRACE(all.items[i]["optimizer"].as_string());
    expect_same(Twin(all.items[i], GetParam()).run(0, kWhole), whole.as_items()[i]);
    halves.items.emplace_back(Twin(all.items[i], GetParam()).run(0, kHalf));
    Twin other(all.items[i], GetParam());
    other.load(first.as_items()[i]);
    expect_same(other.run(kHalf, kWhole), second.as_items()[i]);
  }
  save(halves, folder_.file("halves.pt"));
  const auto theirs = in_python(kHalf, kWhole, folder_.file("halves.pt"));
  for (std::size_t i = 0; i < all.items.size(); ++i) expect_same(theirs.as_items()[i], second.as_items()[i]);
}

TEST(StepLR, LoadsStepSizeAndGamma) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  optim::StepLR other(optimizer, 7, 0.3);
  optim::StepLR scheduler(optimizer, 2, 0.5);
  scheduler.load_state_dict(other.state_dict());
  EXPECT_TRUE(equal(scheduler.state_dict(), other.state_dict()));
}

TEST(StepLR, LoadsRatesThatPythonKeepsInTensors) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  optim::StepLR scheduler(optimizer, 2);
  auto state = scheduler.state_dict();
  state.set("_last_lr", List{torch::tensor(0.25)});
  state.set("gamma", torch::tensor(0.5));
  scheduler.load_state_dict(state);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.25));
  EXPECT_EQ(scheduler.state_dict().at("gamma").as_double(), 0.5);
}

TEST(StepLR, RejectsInvalidOptions) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  EXPECT_THAT(error_of([&] { optim::StepLR(optimizer, 0); }), HasSubstr("step_size = 0"));
  optim::StepLR scheduler(optimizer, 2);
  const auto before = scheduler.state_dict();
  for (const auto& [name, value] :
       Dict{{"step_size", 0}, {"gamma", "x"}, {"_last_lr", 0.5}, {"last_epoch", None()}}) {
    auto state = before;
    state.set("_step_count", 9);
    state.set(name, value);
    EXPECT_THAT(error_of([&] { scheduler.load_state_dict(state); }), HasSubstr("'" + name.as_string() + "'"));
    EXPECT_TRUE(equal(scheduler.state_dict(), before));
  }
}

TEST(StepLR, RejectsForeignState) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  optim::StepLR scheduler(optimizer, 2);
  EXPECT_THAT(error_of([&] { scheduler.load_state_dict({{"epoch", 3}}); }), HasSubstr("'last_epoch'"));
  torch::optim::SGD two({torch::zeros({1})}, 0.5);
  two.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({1})}));
  EXPECT_THAT(error_of([&] { scheduler.load_state_dict(optim::StepLR(two, 2).state_dict()); }),
              HasSubstr("rates of 2 parameter groups, but the optimizer has 1"));
}

}  // namespace
}  // namespace lockstep::testing
