// SPDX-License-Identifier: BSD-3-Clause
// Steps of fused optimizers where Python has nothing to compare with: layouts, refusals, closures.
#include <array>
#include <string_view>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

at::Tensor images() { return torch::arange(24.0).reshape({1, 2, 3, 4}); }

at::Tensor parameter(const at::Tensor& value) { return value.detach().clone().requires_grad_(); }

// Steps with the gradient laid out as `gradient` says; contiguous values of the parameter afterwards.
template <typename Optimizer>
at::Tensor stepped(at::Tensor weight, const at::Tensor& gradient, const at::Tensor& scale = {}) {
  Optimizer optimizer({weight}, 0.5);
  for (int step = 0; step < 3; ++step) {
    weight.mutable_grad() = gradient.clone();
    optimizer.grad_scale(scale);
    optimizer.step();
  }
  return weight.detach().contiguous();
}

template <typename Optimizer>
void expect_any_layout_does() {
  const auto gradient = images() / 7 - 1;
  const auto plain = stepped<Optimizer>(parameter(images()), gradient);
  const auto rows = [&](const at::Tensor& weight, const at::Tensor& grad) {
    EXPECT_TRUE(torch::equal(stepped<Optimizer>(weight, grad), plain));
  };
  rows(parameter(images().contiguous(kChannelsLast)), gradient);
  rows(parameter(images()), gradient.contiguous(kChannelsLast));
  rows(parameter(images().contiguous(kChannelsLast)), gradient.contiguous(kChannelsLast));
  rows(parameter(images()), torch::stack({gradient, gradient}, -1).select(-1, 1));
}

TEST(FusedOptimizers, GradientsMayHaveADifferentLayoutThanTheirParameters) {
  expect_any_layout_does<FusedAdam>();
  expect_any_layout_does<FusedAdamW>();
  expect_any_layout_does<FusedSGD>();
}

TEST(FusedOptimizers, DividedGradientsAreSeenInAnyLayout) {
  for (const bool other_layout : {false, true}) {
    auto weight = parameter(images());
    weight.mutable_grad() = other_layout ? images().contiguous(kChannelsLast) : images();
    const auto gradient = weight.grad();
    FusedAdamW optimizer({weight});
    optimizer.grad_scale(torch::tensor(4.0F));
    optimizer.step();
    EXPECT_TRUE(weight.grad().is_same(gradient));
    EXPECT_TRUE(torch::equal(gradient.contiguous(), images() / 4));
  }
}

TEST(FusedOptimizers, AParameterMayChangeItsLayoutBetweenSteps) {
  auto weight = parameter(images());
  auto twin = parameter(images());
  FusedAdamW optimizer({weight}, 0.5);
  FusedAdamW twins({twin}, 0.5);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) weight.set_data(weight.detach().contiguous(kChannelsLast));
    weight.mutable_grad() = images() - 10;
    twin.mutable_grad() = images() - 10;
    optimizer.step();
    twins.step();
  }
  EXPECT_TRUE(weight.is_contiguous(kChannelsLast));
  EXPECT_TRUE(torch::equal(weight, twin));
}

// What is thrown by `act` names the second parameter.
template <typename Act>
void expect_named(Act act, const std::string& text) {
  EXPECT_THAT(act, ThrowsMessage<ArgumentError>(AllOf(HasSubstr("parameter 1 of group 0"), HasSubstr(text))));
}

TEST(FusedOptimizers, UnsupportedTensorsAreNamed) {
  const auto refused = [](const at::Tensor& weight, const std::string& text) {
    expect_named([&] { FusedAdamW({parameter(images()), weight}); }, text);
    expect_named([&] { FusedSGD({parameter(images()), weight}); }, text);
  };
  refused(torch::ones({2}, torch::kComplexFloat).requires_grad_(), "is not a floating-point tensor");
  refused(torch::ones({4, 2}).select(1, 0).requires_grad_(), "has gaps");
}

TEST(FusedOptimizers, WhatHasBecomeSomethingElseIsNamedAtTheStep) {
  const auto refused = [](const at::Tensor& value, const at::Tensor& gradient, const std::string& text) {
    auto weight = parameter(torch::ones({4, 2}));
    FusedAdamW adam({parameter(images()), weight});
    FusedSGD sgd({parameter(images()), weight});
    weight.set_data(value);
    weight.mutable_grad() = gradient;
    expect_named([&] { adam.step(); }, text);
    expect_named([&] { sgd.step(); }, text);
  };
  refused(torch::ones({4, 2}), torch::ones({4, 2}).to_sparse(), "has a sparse gradient");
  refused(torch::ones({4, 4}).slice(1, 0, 2), torch::ones({4, 2}), "has gaps");
}

// `first` gets a gradient that is taken, `refused` one that is not; then both get one that is.
template <typename Optimizer>
void step_after_a_refusal(Optimizer& optimizer, at::Tensor first, at::Tensor refused) {
  first.mutable_grad() = images();
  refused.mutable_grad() = images().to_sparse();
  EXPECT_THROW(optimizer.step(), ArgumentError);
  EXPECT_TRUE(torch::equal(first, images())) << "nothing has been stepped";
  refused.mutable_grad() = images();
  optimizer.step();
}

TEST(FusedOptimizers, ARejectedParameterLeavesAllGroupsUnstepped) {
  const auto first = parameter(images());
  const auto second = parameter(images());
  FusedAdam optimizer(
      {torch::optim::OptimizerParamGroup({first}), torch::optim::OptimizerParamGroup({second})}, 0.5);
  step_after_a_refusal(optimizer, first, second);
  EXPECT_TRUE(torch::equal(first, second));
}

TEST(FusedOptimizers, AfterARejectionTheNextStepIsTheFirst) {
  const auto first = parameter(images());
  const auto second = parameter(images());
  FusedSGD optimizer({first, second}, FusedSGDOptions(0.5).momentum(0.9).dampening(0.5));
  step_after_a_refusal(optimizer, first, second);
  EXPECT_TRUE(torch::equal(first, images() * 0.5)) << "without dampening";
  EXPECT_TRUE(torch::equal(second, first));
}

TEST(FusedOptimizers, StateOfAParameterWithAChangedTypeIsNamed) {
  auto weight = parameter(images());
  weight.mutable_grad() = images();
  FusedAdam optimizer({weight});
  optimizer.step();
  weight.mutable_grad() = at::Tensor();
  weight.set_data(weight.detach().to(torch::kDouble));
  weight.mutable_grad() = images().to(torch::kDouble);
  EXPECT_THAT([&] { optimizer.step(); }, ThrowsMessage<ArgumentError>(AllOf(
                                             HasSubstr("Double[1,2,3,4] on cpu"), HasSubstr("exp_avg Float["),
                                             HasSubstr("make a new optimizer"))));
}

TEST(FusedOptimizers, ParametersOfOneGroupMayGetGradientsLater) {
  auto early = parameter(images());
  auto late = parameter(images());
  FusedSGD optimizer({early, late}, FusedSGDOptions(0.5).momentum(0.9).dampening(0.5));
  early.mutable_grad() = images();
  optimizer.step();
  late.mutable_grad() = images();
  optimizer.step();
  auto twin = parameter(images());
  FusedSGD twins({twin}, FusedSGDOptions(0.5).momentum(0.9).dampening(0.5));
  twin.mutable_grad() = images();
  twins.step();
  EXPECT_TRUE(torch::equal(late, twin)) << "its first step, without dampening";
  EXPECT_FALSE(torch::equal(early, twin));
}

TEST(FusedOptimizers, ASkippedFirstStepLeavesNoState) {
  auto weight = parameter(images());
  auto twin = parameter(images());
  FusedSGD optimizer({weight}, FusedSGDOptions(0.5).momentum(0.9));
  FusedSGD twins({twin}, FusedSGDOptions(0.5).momentum(0.9));
  weight.mutable_grad() = images() / 0;
  optimizer.found_inf(torch::tensor(1.0F));
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, images()));
  optimizer.found_inf({});
  for (int step = 0; step < 2; ++step) {
    weight.mutable_grad() = images();
    twin.mutable_grad() = images();
    optimizer.step();
    twins.step();
  }
  EXPECT_TRUE(torch::equal(weight, twin));
}

TEST(FusedOptimizers, TheStepAfterASkippedFirstStepIsDampened) {
  auto weight = parameter(images());
  FusedSGD optimizer({weight}, FusedSGDOptions(0.5).momentum(0.9).dampening(0.5));
  weight.mutable_grad() = images();
  optimizer.found_inf(torch::tensor(1.0F));
  optimizer.step();
  optimizer.found_inf({});
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, images() * 0.75));
}

// Counts the copies to the CPU in this thread, blocking and non-blocking ones.
class CopiesToCpu {
 public:
  CopiesToCpu() {
    counts() = {};
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(observe).needsInputs(true));
  }
  ~CopiesToCpu() { at::removeCallback(handle_); }
  CopiesToCpu(const CopiesToCpu&) = delete;
  CopiesToCpu& operator=(const CopiesToCpu&) = delete;

  static int awaited() { return counts()[0]; }
  static int unawaited() { return counts()[1]; }

 private:
  static std::array<int, 2>& counts() {
    static thread_local std::array<int, 2> counts{};
    return counts;
  }
  // The overloads of to() end with non_blocking, copy, memory_format.
  static std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::to") return nullptr;
    const auto inputs = function.inputs();
    for (const auto& input : inputs) {
      if (!input.isDevice() || !input.toDevice().is_cpu()) continue;
      ++counts()[inputs[inputs.size() - 3].toBool() ? 1 : 0];
    }
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
};

TEST(FusedOptimizers, WhatIsBroughtToTheCpuIsWaitedFor) {
  const auto weight = parameter(images());
  FusedAdamW optimizer({weight});
  amp::GradScaler scaler(at::kCPU);
  const CopiesToCpu copies;
  scaler.scale(weight.sum()).backward();
  scaler.step(optimizer);
  scaler.update();
  EXPECT_GT(CopiesToCpu::awaited(), 0);
  EXPECT_EQ(CopiesToCpu::unawaited(), 0);
}

TEST(FusedOptimizers, TheClosureComputesGradientsAndItsLossIsReturned) {
  const auto weight = parameter(images());
  FusedAdam optimizer({weight}, 0.5);
  const torch::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto sum = weight.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 276);
  EXPECT_FALSE(torch::equal(weight, images()));
}

TEST(FusedOptimizers, WithoutGradientsNothingHappens) {
  FusedAdamW optimizer({parameter(images())});
  EXPECT_FALSE(optimizer.step().defined());
  EXPECT_TRUE(optimizer.state().empty());
  FusedAdamW empty(std::vector<at::Tensor>{});
  empty.step();
}

TEST(FusedOptimizers, StepWithinBackwardAsAfterIt) {
  const testing::FakeGroup fake(1);
  torch::manual_seed(0);
  torch::nn::Sequential within(torch::nn::Linear(4, 3), torch::nn::Linear(3, 2));
  torch::nn::Sequential after(torch::nn::Linear(4, 3), torch::nn::Linear(3, 2));
  load_state_dict(after, state_dict(within));
  const auto make = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<FusedAdamW>(std::move(parameters), 0.1);
  };
  DistributedDataParallel ddp(within, {.process_group = fake.group, .optimizer_in_backward = make});
  FusedAdamW optimizer(after->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto input = torch::randn({2, 4});
    ddp->forward(input).sum().backward();
    optimizer.zero_grad();
    after->forward(input).sum().backward();
    optimizer.step();
  }
  EXPECT_TRUE(equal(state_dict(within), state_dict(after)));
}

}  // namespace
}  // namespace lockstep::optim
