// SPDX-License-Identifier: BSD-3-Clause
// Options of fused optimizers: those of LibTorch's, learning rates in tensors, groups, schedulers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/fused.h>
#include <lockstep/optim/reduce_lr_on_plateau.h>

namespace lockstep::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::optim::OptimizerParamGroup;

at::Tensor weight(float value = 1) { return torch::full({3}, value, torch::requires_grad()); }

template <typename Options>
OptimizerParamGroup group_with(const Options& options) {
  return {{weight()}, std::make_unique<Options>(options)};
}

const FusedAdamWOptions& options_of(const FusedOptimizer& optimizer, std::size_t group) {
  return dynamic_cast<const FusedAdamWOptions&>(optimizer.param_groups()[group].options());
}

TEST(FusedOptions, AcceptLibTorchsOptions) {
  FusedAdamW optimizer({group_with(torch::optim::AdamWOptions().eps(0.5))},
                       torch::optim::AdamWOptions(0.25).weight_decay(0.75));
  EXPECT_EQ(options_of(optimizer, 0).eps(), 0.5);
  EXPECT_FALSE(options_of(optimizer, 0).maximize());
  EXPECT_EQ(FusedAdamW({weight()}).param_groups()[0].options().get_lr(), 1e-3);
  EXPECT_EQ(FusedSGD({weight()}, 0.5).param_groups()[0].options().get_lr(), 0.5);
}

TEST(FusedOptions, GroupsKeepTheirOwnOptions) {
  FusedAdamW optimizer({OptimizerParamGroup({weight()})}, FusedAdamWOptions(0.25));
  optimizer.add_param_group(group_with(FusedAdamWOptions(0.5).maximize(true)));
  const FusedAdamWOptions rate(torch::tensor(0.125F));
  optimizer.add_param_group(group_with(rate));
  EXPECT_FALSE(options_of(optimizer, 0).maximize());
  EXPECT_TRUE(options_of(optimizer, 1).maximize());
  EXPECT_EQ(options_of(optimizer, 1).lr(), 0.5);
  EXPECT_TRUE(options_of(optimizer, 2).lr_tensor().is_same(rate.lr_tensor()));
  EXPECT_EQ(options_of(optimizer, 2).get_lr(), 0.125);
}

TEST(FusedOptions, AGroupMayHaveANumberIfTheDefaultIsATensor) {
  const auto rate = torch::tensor(0.25F);
  FusedAdamW optimizer({OptimizerParamGroup({weight()})}, FusedAdamWOptions(rate));
  optimizer.add_param_group(group_with(torch::optim::AdamWOptions(0.5)));
  EXPECT_TRUE(options_of(optimizer, 0).lr_tensor().is_same(rate));
  EXPECT_FALSE(options_of(optimizer, 1).lr_tensor().defined());
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.5);
  EXPECT_EQ(rate.item<float>(), 0.25);
}

// A step of SGD moves a weight by its rate times its gradient, which is 1.
double moved_by(FusedSGD& optimizer) {
  auto& parameter = optimizer.param_groups()[0].params()[0];
  parameter.mutable_grad() = torch::ones_like(parameter);
  const auto before = parameter.detach().clone();
  optimizer.step();
  return (before - parameter)[0].item<double>();
}

TEST(FusedOptions, TheRateIsTheLastOneSet) {
  const auto rate = torch::tensor(0.25F);
  for (const bool in_tensor : {false, true}) {
    FusedSGD optimizer({weight(0)}, in_tensor ? FusedSGDOptions(rate) : FusedSGDOptions(0.25));
    auto& options = optimizer.param_groups()[0].options();
    EXPECT_EQ(moved_by(optimizer), 0.25);
    options.set_lr(0.5);
    EXPECT_EQ(moved_by(optimizer), 0.5);
    static_cast<torch::optim::SGDOptions&>(options).lr(0.125);
    EXPECT_EQ(moved_by(optimizer), 0.125);
    static_cast<FusedSGDOptions&>(options).lr() = 2;
    EXPECT_EQ(moved_by(optimizer), 2);
    EXPECT_EQ(options.get_lr(), 2);
    if (!in_tensor) continue;
    rate.mul_(2);
    EXPECT_EQ(moved_by(optimizer), 4);
    EXPECT_EQ(options.get_lr(), 4);
    options.set_lr(2);
    EXPECT_EQ(rate.item<float>(), 2) << "also when it is what was said before";
  }
}

TEST(FusedOptions, ARateSetInLibTorchsOptionsAppliesToTheNextStep) {
  const auto rate = torch::tensor(0.25F);
  FusedSGD optimizer({weight(0)}, FusedSGDOptions(rate));
  auto& options = optimizer.param_groups()[0].options();
  static_cast<torch::optim::SGDOptions&>(options).lr(0.125);
  EXPECT_EQ(options.get_lr(), 0.125);
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(options.get_lr(), 0.0625);
  EXPECT_EQ(rate.item<float>(), 0.0625);
}

TEST(FusedOptions, SchedulersChangeTheRate) {
  for (const bool in_tensor : {false, true}) {
    FusedSGD optimizer({weight(0)}, in_tensor ? FusedSGDOptions(torch::tensor(1.0F)) : FusedSGDOptions(1.0));
    torch::optim::StepLR scheduler(optimizer, 1, 0.5);
    std::vector<double> rates;
    for (int step = 0; step < 4; ++step) {
      rates.push_back(moved_by(optimizer));
      scheduler.step();
    }
    EXPECT_THAT(rates, ::testing::ElementsAre(1, 1, 0.5, 0.25)) << "LibTorch's StepLR is a call late";
  }
}

TEST(FusedOptions, GroupsWithTheDefaultTensorHaveSeparateRates) {
  const auto rate = torch::tensor(0.25F);
  FusedSGD optimizer({OptimizerParamGroup({weight()}), OptimizerParamGroup({weight()})},
                     FusedSGDOptions(rate));
  optimizer.add_param_group(group_with(FusedSGDOptions().momentum(0.5)));
  auto& groups = optimizer.param_groups();
  groups[0].options().set_lr(2);
  groups[1].options().set_lr(4);
  groups[2].options().set_lr(8);
  EXPECT_EQ(groups[0].options().get_lr(), 2);
  EXPECT_EQ(groups[1].options().get_lr(), 4);
  EXPECT_EQ(groups[2].options().get_lr(), 8);
  EXPECT_EQ(rate.item<float>(), 2) << "the first group has the tensor that was given";
}

TEST(FusedOptions, ReduceLROnPlateauLowersEachGroupOnce) {
  FusedSGD optimizer({OptimizerParamGroup({weight()}), OptimizerParamGroup({weight()})},
                     FusedSGDOptions(torch::tensor(1.0F)));
  optim::ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0});
  scheduler.step(1);
  scheduler.step(1);
  for (const auto& group : optimizer.param_groups()) EXPECT_EQ(group.options().get_lr(), 0.5);
}

TEST(FusedOptions, AddingAGroupDoesNotFillItsTensor) {
  const auto rate = torch::tensor(0.25F);
  const FusedSGDOptions options(rate);
  rate.fill_(0.5);
  FusedSGD optimizer({group_with(options)});
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
}

TEST(FusedOptions, GroupsAddedThroughLibTorchAreConverted) {
  const auto rate = torch::tensor(0.25F);
  FusedSGD optimizer({OptimizerParamGroup({weight(0)})}, FusedSGDOptions(rate));
  torch::optim::Optimizer& base = optimizer;
  base.add_param_group(OptimizerParamGroup({weight()}));
  base.add_param_group(group_with(torch::optim::SGDOptions(0.5)));
  EXPECT_EQ(moved_by(optimizer), 0.25);
  auto& groups = optimizer.param_groups();
  groups[1].options().set_lr(2);
  EXPECT_EQ(moved_by(optimizer), 0.25) << "a tensor of its own";
  EXPECT_EQ(groups[2].options().get_lr(), 0.5);
  groups[0].set_options(std::make_unique<torch::optim::SGDOptions>(0.125));
  EXPECT_EQ(moved_by(optimizer), 0.125);
  EXPECT_TRUE(dynamic_cast<const FusedSGDOptions*>(&groups[0].options()));
}

TEST(FusedOptions, GroupsAddedThroughLibTorchAreCheckedAtTheStep) {
  FusedAdam optimizer({weight()});
  optimizer.param_groups()[0].set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THAT([&] { optimizer.step(); }, ThrowsMessage<ArgumentError>(HasSubstr("give it FusedAdamOptions")));
  FusedAdam integers({weight()});
  torch::optim::Optimizer& base = integers;
  base.add_param_group(OptimizerParamGroup({torch::ones({2}, torch::kLong)}));
  EXPECT_THAT(
      [&] { integers.step(); },
      ThrowsMessage<ArgumentError>(HasSubstr("parameter 0 of group 1, Long[2] on cpu, is not a floating")));
}

TEST(FusedOptions, CopiesKeepAllFields) {
  FusedAdamWOptions options(torch::tensor(0.5F));
  options.maximize(true).betas({0.5, 0.25});
  const torch::optim::OptimizerOptions& base = options;
  const auto copy = base.clone();
  EXPECT_EQ(dynamic_cast<const FusedAdamWOptions&>(*copy), options);
  EXPECT_FALSE(FusedAdamWOptions(options).maximize(false) == options);
}

TEST(FusedOptions, InvalidValuesAreRejected) {
  const auto refused = [](const auto& make, const std::string& text) {
    EXPECT_THAT([&] { make(); }, ThrowsMessage<ArgumentError>(HasSubstr(text)));
  };
  refused([] { FusedAdamW({weight()}, -1.0); }, "FusedAdamW: lr must be 0 or more, not -1");
  refused([] { FusedAdam({weight()}, FusedAdamOptions().betas({0.5, 1})); }, "FusedAdam: betas must be");
  refused([] { FusedAdam({weight()}, FusedAdamOptions().eps(std::nan(""))); },
          "eps must be 0 or more, not nan");
  refused([] { FusedSGD({weight()}, FusedSGDOptions(0.1).nesterov(true)); }, "nesterov needs a momentum");
  refused([] { FusedAdamWOptions{torch::ones({2})}; }, "must have one element; this is of 2");
  refused([] { FusedAdamWOptions{at::Tensor()}; }, "undefined");
  refused([] { FusedAdamWOptions{torch::ones({}, torch::kLong)}; }, "must be float32");
  refused([] { FusedAdamWOptions{torch::ones({}, torch::requires_grad())}; }, "requires one");
  refused([] { FusedAdamW({group_with(torch::optim::SGDOptions(0.1))}); },
          "options of another kind of optimizer; give it FusedAdamWOptions");
}

TEST(FusedOptions, AParameterBelongsToOneGroup) {
  const auto shared = weight();
  FusedAdam optimizer({shared, weight(), shared});
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), 2U);
  EXPECT_THAT([&] { optimizer.add_param_group(OptimizerParamGroup({shared})); },
              ThrowsMessage<ArgumentError>(
                  HasSubstr("FusedAdam: parameter 0 of group 1, Float[3] on cpu, is in group 0 already")));
  EXPECT_THAT(
      [&] {
        optimizer.add_param_group(OptimizerParamGroup({weight(), at::Tensor()}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("FusedAdam: parameter 1 of group 1 is undefined")));
  EXPECT_THAT(
      [&] {
        optimizer.add_param_group({{weight()}, std::make_unique<FusedAdamOptions>(-1.0)});
      },
      ThrowsMessage<ArgumentError>(HasSubstr("lr must be")));
  EXPECT_EQ(optimizer.param_groups().size(), 1U) << "a refused group is not there";
}

}  // namespace
}  // namespace lockstep::optim
