// SPDX-License-Identifier: BSD-3-Clause
// GraphedStep with fused optimizers and a GradScaler, with graphs that are recorded by hand. The kernels are
// replaced: those of the CPU read the number of the step, which GraphedStep sees as a wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <lockstep/amp/grad_scaler.h>
#include <lockstep/base/error.h>
#include <lockstep/graphs/graphed_step.h>
#include <lockstep/optim/fused.h>

#include "unit/graphs/fake_graph_device.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = GraphedStep::Tensors;

using OptionalTensor = std::optional<at::Tensor>;

template <typename Rate>
void adam_kernel(at::TensorList parameters, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                 at::TensorList, Rate, double, double, double, double, bool, bool, const OptionalTensor&,
                 const OptionalTensor&) {
  for (const auto& parameter : parameters) parameter.add_(1);
}

template <typename Rate>
void sgd_kernel(at::TensorList parameters, at::TensorList, at::TensorList, double, double, Rate, double, bool,
                bool, bool, const OptionalTensor&, const OptionalTensor&) {
  for (const auto& parameter : parameters) parameter.add_(1);
}

TORCH_LIBRARY_IMPL(aten, CPU, kernels) {
  for (const auto* name : {"_fused_adam_", "_fused_adamw_"}) {
    kernels.impl(name, &adam_kernel<double>);
    kernels.impl((std::string(name) + ".tensor_lr").c_str(), &adam_kernel<const at::Tensor&>);
  }
  kernels.impl("_fused_sgd_", &sgd_kernel<double>);
  kernels.impl("_fused_sgd_.tensor_lr", &sgd_kernel<const at::Tensor&>);
}

class GraphedOptimizersTest : public ::testing::Test {
 protected:
  GraphedStepOptions options(torch::optim::Optimizer& optimizer) const {
    return {.optimizers = {&optimizer}, .graph_device = device_};
  }
  GraphedStep::Step training(torch::optim::Optimizer& optimizer) {
    return [this, &optimizer](const Tensors& inputs) -> Tensors {
      optimizer.zero_grad();
      auto loss = (inputs[0] * weight_).sum();
      loss.backward();
      optimizer.step();
      return {loss};
    };
  }
  static void call(GraphedStep& step, int times) {
    for (int i = 0; i < times; ++i) step({torch::ones({4, 2})});
  }
  std::shared_ptr<testing::FakeGraphDevice> device_ = std::make_shared<testing::FakeGraphDevice>();
  torch::Tensor weight_ = torch::ones({2}, torch::requires_grad());
};

TEST_F(GraphedOptimizersTest, FusedOptimizersAreCaptured) {
  const auto captured = [&](torch::optim::Optimizer& optimizer) {
    GraphedStep step(torch::kCPU, training(optimizer), options(optimizer));
    call(step, 8);
    return step.stats().captures == 1 && step.stats().replays == 5;
  };
  optim::FusedAdam adam({weight_});
  optim::FusedAdamW adamw({weight_}, optim::FusedAdamWOptions().amsgrad(true));
  optim::FusedSGD sgd({weight_}, optim::FusedSGDOptions(0.1).momentum(0.9));
  EXPECT_TRUE(captured(adam));
  EXPECT_TRUE(captured(adamw));
  EXPECT_TRUE(captured(sgd));
}

TEST_F(GraphedOptimizersTest, TheGraphCountsStepsNotTheHost) {
  optim::FusedAdamW optimizer({weight_});
  GraphedStep step(torch::kCPU, training(optimizer), options(optimizer));
  call(step, 4);
  const auto count = dynamic_cast<optim::FusedAdamParamState&>(*optimizer.state().begin()->second).step();
  const auto counted = count.item<float>();
  call(step, 3);
  EXPECT_EQ(count.item<float>(), counted) << "this device's replays do nothing";
}

TEST_F(GraphedOptimizersTest, AChangedRateIsCapturedAgain) {
  optim::FusedAdamW optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, training(optimizer), options(optimizer));
  call(step, 5);
  optimizer.param_groups()[0].options().set_lr(0.01);
  call(step, 2);
  EXPECT_EQ(step.stats().eager, 4);
  EXPECT_EQ(step.stats().captures, 2);
}

TEST_F(GraphedOptimizersTest, ATensorRateChangesWithinTheGraph) {
  const auto rate = torch::tensor(0.1F);
  optim::FusedAdamW optimizer({weight_}, optim::FusedAdamWOptions(rate));
  GraphedStep step(torch::kCPU, training(optimizer), options(optimizer));
  call(step, 5);
  auto& options = optimizer.param_groups()[0].options();
  for (const double lr : {0.01, 0.5, 0.25}) {
    options.set_lr(lr);
    call(step, 1);
    EXPECT_EQ(rate.item<float>(), static_cast<float>(lr));
  }
  EXPECT_EQ(step.stats().captures, 1);
  EXPECT_EQ(step.stats().replays, 5);
}

TEST_F(GraphedOptimizersTest, ARateSetInTheOptionsIsNotLost) {
  const auto rate = torch::tensor(0.1F);
  optim::FusedAdamW optimizer({weight_}, optim::FusedAdamWOptions(rate));
  GraphedStep step(torch::kCPU, training(optimizer), options(optimizer));
  call(step, 5);
  static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(0.5);
  call(step, 1);
  EXPECT_EQ(step.stats().replays, 3);
  EXPECT_EQ(rate.item<float>(), 0.5);
}

TEST_F(GraphedOptimizersTest, OtherOptionsAndStateAreWatched) {
  optim::FusedAdamW optimizer({weight_}, optim::FusedAdamWOptions(torch::tensor(0.1F)));
  GraphedStep step(torch::kCPU, training(optimizer), options(optimizer));
  const auto captures = [&] {
    call(step, 5);
    return step.stats().captures;
  };
  EXPECT_EQ(captures(), 1);
  auto& options = dynamic_cast<optim::FusedAdamWOptions&>(optimizer.param_groups()[0].options());
  options.maximize(true);
  EXPECT_EQ(captures(), 2);
  options = optim::FusedAdamWOptions(torch::tensor(0.1F)).maximize(true);
  EXPECT_EQ(captures(), 3) << "another tensor as the rate";
  auto& state = dynamic_cast<optim::FusedAdamParamState&>(*optimizer.state().begin()->second);
  state.step(torch::tensor(7.0F));
  EXPECT_EQ(captures(), 4);
  EXPECT_EQ(captures(), 4);
}

// A whole step with a scaler.
GraphedStep::Step scaled_training(at::Tensor& weight, amp::GradScaler& scaler,
                                  torch::optim::Optimizer& optimizer) {
  return [&](const Tensors& inputs) -> Tensors {
    optimizer.zero_grad();
    auto loss = (inputs[0] * weight).sum();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return {loss};
  };
}

TEST_F(GraphedOptimizersTest, AScalerIsPartOfTheGraphWithAFusedOptimizer) {
  amp::GradScaler scaler(torch::kCPU, {.init_scale = 8, .growth_interval = 2});
  optim::FusedAdamW optimizer({weight_});
  GraphedStep step(torch::kCPU, scaled_training(weight_, scaler, optimizer), options(optimizer));
  call(step, 6);
  EXPECT_EQ(step.stats().captures, 1);
  EXPECT_EQ(step.stats().replays, 3);
}

TEST_F(GraphedOptimizersTest, AScalerWaitsForTheDeviceWithOtherOptimizers) {
  amp::GradScaler scaler(torch::kCPU, {.init_scale = 8});
  torch::optim::SGD optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, scaled_training(weight_, scaler, optimizer), options(optimizer));
  call(step, 2);
  EXPECT_THAT([&] { call(step, 1); }, ThrowsMessage<Error>(HasSubstr("synchronizes with the device")));
}

}  // namespace
}  // namespace lockstep
