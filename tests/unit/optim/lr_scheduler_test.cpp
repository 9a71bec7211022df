// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <string>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/optim/lr_scheduler.h>

#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LRSchedulers, FillRatesThatAreTensors) {
  optim::FusedAdam with_tensor({torch::zeros({1})}, optim::FusedAdamOptions(torch::tensor(0.5)));
  torch::optim::Adam with_number({torch::zeros({1})}, 0.5);
  const auto& options = dynamic_cast<optim::FusedAdamOptions&>(with_tensor.param_groups()[0].options());
  const optim::OneCycleLROptions cycle{.max_lr = 0.7, .total_steps = 9};
  optim::OneCycleLR left(with_tensor, cycle);
  optim::OneCycleLR right(with_number, cycle);
  for (int step = 0; step < 8; ++step) {
    left.step();
    right.step();
    EXPECT_FLOAT_EQ(options.lr_tensor().item<float>(), static_cast<float>(right.get_last_lr()[0]));
  }
}

TEST(LRSchedulers, GoToFractionsOfEpochs) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 1.0);
  optim::CosineAnnealingWarmRestarts scheduler(optimizer, 2, 2);
  scheduler.step(0.5);
  EXPECT_NEAR(scheduler.get_last_lr()[0], (1 + std::cos(M_PI / 4)) / 2, 1e-15);
  scheduler.step(3);  // the second cycle goes from 2 to 6
  EXPECT_NEAR(scheduler.get_last_lr()[0], (1 + std::cos(M_PI / 4)) / 2, 1e-15);
  EXPECT_THAT(error_of([&] { scheduler.step(-1); }), HasSubstr("epoch = -1"));
}

TEST(LRSchedulers, ForgetInitialRatesWithTheLastScheduler) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 1.0);
  const auto has_initial_lr = [&] {
    return state_dict(optimizer).at("param_groups").as_items()[0].as_dict().contains("initial_lr");
  };
  {
    const optim::ConstantLR scheduler(optimizer, 0.25);
    EXPECT_EQ(optim::LambdaLR(optimizer, [](auto) { return 0.5; }).get_last_lr()[0], 0.5);
    EXPECT_TRUE(has_initial_lr());
  }
  EXPECT_FALSE(has_initial_lr());
  EXPECT_EQ(optim::LambdaLR(optimizer, [](auto) { return 1; }).get_last_lr()[0], 0.5);
}

TEST(LRSchedulers, LoadTheirArguments) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  const optim::StepLR other(optimizer, 7, 0.3);
  optim::StepLR scheduler(optimizer, 2, 0.5);
  scheduler.load_state_dict(other.state_dict());
  EXPECT_TRUE(equal(scheduler.state_dict(), other.state_dict()));
  auto state = scheduler.state_dict();
  state.set("_last_lr", List{torch::tensor(0.25)});  // as Python has rates in tensors
  state.set("gamma", torch::tensor(0.5));
  scheduler.load_state_dict(state);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.25));
  EXPECT_EQ(scheduler.state_dict().at("gamma").as_double(), 0.5);
}

TEST(LRSchedulers, StayUnchangedWhenAStateDoesNotFit) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  optim::StepLR scheduler(optimizer, 2);
  const auto before = scheduler.state_dict();
  const Dict wrong{
      {"step_size", 0}, {"gamma", "x"}, {"_last_lr", 0.5}, {"last_epoch", None()}, {"base_lrs", List{1, 2}}};
  for (const auto& [name, value] : wrong) {
    auto state = before;
    state.set("_step_count", 9);
    state.set(name, value);
    EXPECT_THAT(error_of([&] { scheduler.load_state_dict(state); }), HasSubstr("'" + name.as_string() + "'"));
    EXPECT_TRUE(equal(scheduler.state_dict(), before));
  }
  EXPECT_THAT(error_of([&] { scheduler.load_state_dict({{"epoch", 3}}); }), HasSubstr("'last_epoch'"));
  optim::SequentialLR sequence(optimizer, {scheduler, optim::ExponentialLR(optimizer, 0.5)}, {3});
  auto state = sequence.state_dict();
  const auto whole = state;
  state.set("last_epoch", 2);
  state.at("_schedulers") = List{state["_schedulers"].as_items()[0], Dict{{"gamma", 2}}};
  EXPECT_THAT(error_of([&] { sequence.load_state_dict(state); }),
              HasSubstr("ExponentialLR has no 'last_epoch'"));
  EXPECT_TRUE(equal(sequence.state_dict(), whole));
  state.at("_schedulers") = List{};
  EXPECT_THAT(error_of([&] { sequence.load_state_dict(state); }), HasSubstr("0 states for 2 schedulers"));
}

TEST(LRSchedulers, RefuseToStepAddedGroups) {
  using namespace optim;
  const auto refuses = [](const auto& make) {
    torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
    auto scheduler = make(optimizer);
    optimizer.add_param_group({{torch::zeros({1})}});
    EXPECT_THAT(error_of([&] { scheduler.step(); }), HasSubstr("has 2 parameter groups, but had 1"));
  };
  const LrLambda half = [](auto) { return 0.5; };
  refuses([&](auto& optimizer) { return LambdaLR(optimizer, half); });
  refuses([&](auto& optimizer) { return MultiplicativeLR(optimizer, half); });
  refuses([](auto& optimizer) { return CosineAnnealingWarmRestarts(optimizer, 3); });
  refuses([](auto& optimizer) { return SWALR(optimizer, 0.1); });
  refuses([](auto& optimizer) { return OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 9}); });
  refuses([](auto& optimizer) { return CyclicLR(optimizer, {.base_lr = 0.1, .max_lr = 1}); });
}

TEST(Literal, IsAnEnumeratorOrPyTorchsLiteral) {
  using optim::AnnealStrategy;
  constexpr Literal<AnnealStrategy> literal = "linear";
  static_assert(literal == AnnealStrategy::linear && literal.text() == "linear");
  EXPECT_EQ(optim::OneCycleLROptions{.max_lr = 1}.anneal_strategy, AnnealStrategy::cos);
  static_assert(!std::is_convertible_v<std::string, Literal<AnnealStrategy>>);
  EXPECT_EQ(parse_literal<AnnealStrategy>(std::string("cos")), AnnealStrategy::cos);
  EXPECT_EQ(parse_literal<AnnealStrategy>("cso"), std::nullopt);
}

TEST(LRSchedulers, RefuseInvalidArguments) {
  torch::optim::SGD optimizer({torch::zeros({1})}, 0.5);
  torch::optim::Adagrad plain({torch::zeros({1})}, 0.5);
  const auto refuses = [](const auto& make, const std::string& words) {
    EXPECT_THAT(error_of(make), HasSubstr(words));
  };
  refuses([&] { optim::StepLR(optimizer, 0); }, "StepLR: 'step_size' is 0");
  refuses([&] { optim::ConstantLR(optimizer, 1.5); }, "'factor' is 1.5");
  refuses([&] { optim::ConstantLR(optimizer, 0, 1).step(); }, "nan at epoch 1");  // as in PyTorch
  optimizer.param_groups()[0].options().set_lr(0.5);
  refuses([&] { optim::ExponentialLR(optimizer, {}); }, "'gamma' is 0");
  refuses([&] { optim::ExponentialLR(optimizer, -0.5); }, "'gamma' is -0.5");
  refuses([&] { optim::PolynomialLR(optimizer, 0); }, "'total_iters' is 0");
  refuses([&] { optim::LinearLR(optimizer, 0); }, "'start_factor' is 0");
  refuses([&] { optim::LinearLR(optimizer, 1, -1); }, "'end_factor' is -1");
  refuses([&] { optim::CosineAnnealingLR(optimizer, 0); }, "'T_max' is 0");
  refuses([&] { optim::CosineAnnealingWarmRestarts(optimizer, 0); }, "'T_0' is 0");
  refuses([&] { optim::CosineAnnealingWarmRestarts(optimizer, 1, 0); }, "'T_mult' is 0");
  refuses([&] { optim::LambdaLR(optimizer, std::vector<optim::LrLambda>(2)); }, "2 functions for 1");
  refuses([&] { optim::CyclicLR(plain, {.base_lr = 0.1, .max_lr = 1}); }, "neither momentum nor betas");
  refuses([&] { optim::CyclicLR(optimizer, {.base_lr = {0.1, 0.2}, .max_lr = 1}); }, "base_lr has 2 values");
  refuses([&] { optim::OneCycleLR(optimizer, {.max_lr = 1}); }, "give total_steps");
  refuses([&] { optim::OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 0}); }, "total_steps = 0");
  refuses([&] { optim::OneCycleLR(optimizer, {.max_lr = 1, .total_steps = 9, .pct_start = 2}); },
          "pct_start = 2");
  refuses([&] { optim::SWALR(optimizer, 0.1, -1); }, "'anneal_epochs' is -1");
  const optim::ExponentialLR one(optimizer, 0.5);
  refuses([&] { optim::SequentialLR(optimizer, {one}, {3}); }, "1 milestones for 1 schedulers");
  refuses(
      [&] {
        optim::SequentialLR(optimizer, {one, optim::ChainedScheduler({one})}, {3});
      },
      "index 1 is a ChainedScheduler");
  refuses([&] { optim::SequentialLR(plain, {one}, {}); }, "of another optimizer");
  refuses([&] { optim::ChainedScheduler({}); }, "at least one scheduler");
  refuses([&] { optim::ChainedScheduler({}, plain); }, "at least one scheduler");
  refuses([&] { optim::scale_lr(0.1, 0); }, "world_size = 0");
  EXPECT_EQ(optim::scale_lr(0.1, 4), 0.4);
  EXPECT_EQ(optim::scale_lr(0.1, 4, "sqrt"), 0.2);
}

}  // namespace
}  // namespace lockstep::testing
