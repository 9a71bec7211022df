// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/lr_scheduler.h>
#include <lockstep/optim/optimizers.h>

#include "support/error_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

template <typename Optimizer, typename Options>
Optimizer stepped(torch::nn::Linear& net, Options options) {
  Optimizer optimizer(net->parameters(), options);
  for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  return optimizer;
}

std::string error_of(torch::optim::Optimizer& optimizer, const Dict& dict) {
  return testing::error_of([&] { load_state_dict(optimizer, dict); });
}

TEST(OptimizerState, AnotherKindOfOptimizerIsRejectedAndNothingChanges) {
  torch::nn::Linear net(2, 2);
  auto adam = stepped<torch::optim::Adam>(net, torch::optim::AdamOptions(0.25));
  const auto before = state_dict(adam);
  auto adamw = stepped<torch::optim::AdamW>(net, torch::optim::AdamWOptions(0.5));
  auto sgd = stepped<torch::optim::SGD>(net, torch::optim::SGDOptions(0.5).momentum(0.9));
  EXPECT_THAT(error_of(adam, state_dict(adamw)), HasSubstr("AdamW"));
  EXPECT_THAT(error_of(adam, state_dict(sgd)), HasSubstr("has no 'betas'"));
  EXPECT_TRUE(equal(state_dict(adam), before));
}

TEST(OptimizerState, GroupsAndShapesMustMatch) {
  torch::nn::Linear net(2, 2);
  torch::nn::Linear wide(3, 2);
  auto sgd = stepped<torch::optim::SGD>(net, torch::optim::SGDOptions(0.5).momentum(0.9));
  auto other = stepped<torch::optim::SGD>(wide, torch::optim::SGDOptions(0.5).momentum(0.9));
  EXPECT_THAT(error_of(sgd, state_dict(other)), HasSubstr("momentum_buffer has shape [2, 3]"));
  torch::optim::SGD two(
      {torch::optim::OptimizerParamGroup({net->weight}), torch::optim::OptimizerParamGroup({net->bias})},
      torch::optim::SGDOptions(0.5));
  EXPECT_THAT(error_of(two, state_dict(sgd)), HasSubstr("different number of parameter groups"));
  torch::optim::SGD fewer({net->weight}, torch::optim::SGDOptions(0.5));
  EXPECT_THAT(error_of(fewer, state_dict(sgd)), HasSubstr("doesn't match the size of optimizer's group"));
}

TEST(OptimizerState, MaximizeIsRejected) {
  torch::nn::Linear net(2, 2);
  auto sgd = stepped<torch::optim::SGD>(net, torch::optim::SGDOptions(0.5).momentum(0.9));
  auto dict = state_dict(sgd);
  auto groups = dict.at("param_groups").as_items();
  groups[0].as_dict().set("maximize", true);
  dict.set("param_groups", List(groups));
  EXPECT_THAT(error_of(sgd, dict), HasSubstr("maximize=True"));
}

TEST(OptimizerState, LoadedTensorsAreCopies) {
  torch::nn::Linear net(2, 2);
  auto sgd = stepped<torch::optim::SGD>(net, torch::optim::SGDOptions(0.5).momentum(0.9));
  auto other = stepped<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1));
  const auto dict = state_dict(sgd);
  load_state_dict(other, dict);
  EXPECT_TRUE(equal(state_dict(other), dict));
  other.step();
  EXPECT_FALSE(equal(state_dict(other), dict));
}

// Python's order, with what its schedulers add.
TEST(OptimizerState, EntriesOfSchedulersComeBeforeTheParameters) {
  torch::nn::Linear net(2, 2);
  const auto last_keys = [](const torch::optim::Optimizer& optimizer) {
    const auto dict = state_dict(optimizer);
    std::vector<std::string> keys;
    for (const auto& [key, value] : dict.at("param_groups").as_items()[0].as_dict())
      keys.push_back(key.as_string());
    return std::vector(keys.end() - 2, keys.end());
  };
  const std::vector<std::string> expected{"initial_lr", "params"};
  torch::optim::SGD sgd(net->parameters(), 0.5);
  optim::NAdam nadam(net->parameters());
  {
    const optim::StepLR of_sgd(sgd, 3), of_nadam(nadam, 3);
    EXPECT_EQ(last_keys(sgd), expected);
    EXPECT_EQ(last_keys(nadam), expected);
  }
  EXPECT_NE(last_keys(sgd), expected);  // its last scheduler is gone
}

// What Python's LBFGS has when there was nothing to do.
TEST(OptimizerState, LoadsFromAnLbfgsWithoutAStep) {
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(1));
  auto dict = state_dict(optimizer);
  dict.set("state", Dict{{0, Dict{{"func_evals", 1}, {"n_iter", 0}}}});
  EXPECT_EQ(error_of(optimizer, dict), "");
}

TEST(OptimizerState, InvalidCountsAndMetaTensorsAreCheckpointErrors) {
  torch::nn::Linear net(2, 2);
  auto adam = stepped<torch::optim::Adam>(net, torch::optim::AdamOptions(0.25));
  const auto with = [&](const char* name, const Value& value) {
    auto dict = state_dict(adam);
    dict.at("state").as_dict().at(0).as_dict().set(name, value);
    return error_of(adam, dict);
  };
  EXPECT_THAT(with("step", torch::full({}, std::numeric_limits<double>::quiet_NaN())),
              HasSubstr("not a count"));
  EXPECT_NE(with("exp_avg", torch::empty({2, 2}, torch::kMeta)), "");
}

class Plain : public torch::optim::Optimizer {
 public:
  explicit Plain(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

TEST(OptimizerState, UnknownOptimizersAreNamed) {
  torch::nn::Linear net(2, 2);
  Plain plain(net->parameters());
  EXPECT_THAT(error_of(plain, {}), HasSubstr("Plain"));
}

TEST(SchedulerState, Resumes) {
  torch::nn::Linear net(2, 2);
  const auto rates = [&](bool interrupted) {
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    auto scheduler = std::make_unique<torch::optim::StepLR>(optimizer, 3, 0.5);
    std::vector<double> seen;
    for (int epoch = 0; epoch < 10; ++epoch) {
      if (interrupted && epoch == 5) {
        const auto kept = state_dict(*scheduler);
        scheduler = std::make_unique<torch::optim::StepLR>(optimizer, 3, 0.5);
        load_state_dict(*scheduler, kept);
      }
      scheduler->step();
      seen.push_back(optimizer.param_groups()[0].options().get_lr());
    }
    return seen;
  };
  EXPECT_EQ(rates(true), rates(false));
}

}  // namespace
}  // namespace lockstep
