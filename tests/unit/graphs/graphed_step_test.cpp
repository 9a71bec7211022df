// SPDX-License-Identifier: BSD-3-Clause
// GraphedStep with graphs that are recorded by hand: on the CPU, a "graph" calls the step again.
#include "unit/graphs/graphed_step_test.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_phase.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::GraphedStepTest;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = GraphedStep::Tensors;

TEST_F(GraphedStepTest, WarmsUpThenCapturesOnceThenReplays) {
  torch::optim::SGD optimizer({weight_}, torch::optim::SGDOptions(0.1).momentum(0.9));
  GraphedStep step(torch::kCPU, training(optimizer), options({.optimizers = {&optimizer}}));
  for (int i = 0; i < 3; ++i) step(ones(4));
  EXPECT_EQ(device_->aside, 3);
  EXPECT_EQ(device_->records, 0);
  for (int i = 0; i < 5; ++i) step(ones(4));
  EXPECT_EQ(device_->aside, 3);
  EXPECT_EQ(device_->records, 1);
  EXPECT_EQ(device_->replays, 5) << "the call that captures replays, too: it has computed nothing yet";
  EXPECT_EQ(steps_, 4);
  EXPECT_EQ(step.stats().eager, 3);
  EXPECT_EQ(step.stats().captures, 1);
  EXPECT_EQ(step.stats().replays, 5);
  EXPECT_EQ(graph_phase(), GraphPhase::none);
}

TEST_F(GraphedStepTest, CopiesInputsIn) {
  Tensors seen;
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) {
        seen = inputs;
        return Tensors{inputs[0] + 1};
      },
      options({.warmup = 2}));
  for (int i = 0; i < 3; ++i) step(ones(2));
  const auto own = seen[0];
  const auto given = torch::full({2, 2}, 7.0);
  step({given});
  EXPECT_FALSE(own.is_alias_of(given));
  EXPECT_TRUE(torch::equal(own, given));
}

TEST_F(GraphedStepTest, KeptOutputsStayUnchanged) {
  torch::Tensor written;
  for (const bool copy : {true, false}) {
    GraphedStep step(
        torch::kCPU,
        [&](const Tensors& inputs) {
          written = inputs[0] + 1;
          return Tensors{written};
        },
        options({.warmup = 2, .copy_outputs = copy}));
    for (int i = 0; i < 2; ++i) step(ones(2));
    const auto first = step(ones(2))[0];
    const auto writes = written;
    device_->on_replay = [&] { writes.fill_(9); };
    const auto second = step(ones(2))[0];
    EXPECT_EQ(first[0][0].item<float>(), copy ? 2 : 9);
    EXPECT_EQ(second[0][0].item<float>(), 9);
    device_->on_replay = [] {};
  }
}

TEST_F(GraphedStepTest, EachInputSignatureHasItsOwnGraph) {
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{inputs[0] + 1}; }, options({.warmup = 2}));
  const auto many = [&](const torch::Tensor& input) {
    for (int i = 0; i < 5; ++i) step({input});
  };
  many(torch::ones({4, 2}));
  many(torch::ones({3, 2}));
  many(torch::ones({4, 2}, torch::kDouble));
  many(torch::ones({2, 4}).t());
  EXPECT_EQ(step.stats().captures, 4);
  {
    const torch::NoGradGuard no_grad;
    many(torch::ones({4, 2}));
  }
  EXPECT_EQ(step.stats().captures, 5) << "without gradients the step does something else";
  many(torch::ones({4, 2}));
  EXPECT_EQ(step.stats().captures, 5);
}

TEST_F(GraphedStepTest, KeepsTheMostRecentlyUsedGraphs) {
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{inputs[0] + 1}; },
      options({.warmup = 2, .max_graphs = 2}));
  const auto calls = [&](std::int64_t rows) {
    for (int i = 0; i < 3; ++i) step(ones(rows));
    return step.stats().captures;
  };
  EXPECT_EQ(calls(1), 1);
  EXPECT_EQ(calls(2), 2);
  EXPECT_EQ(calls(1), 2);
  EXPECT_EQ(calls(3), 3);
  EXPECT_EQ(calls(1), 3) << "2 made room";
  EXPECT_EQ(calls(2), 4);
}

// A graph would use the memory of the old tensors.
TEST_F(GraphedStepTest, AChangedModuleIsCapturedAgain) {
  using torch::nn::Linear;
  torch::nn::Sequential net(Linear(2, 2), torch::nn::ReLU(), Linear(2, 2));
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; },
      options({.modules = {net}, .warmup = 2}));
  for (int i = 0; i < 4; ++i) step(ones(2));
  const auto captures_after = [&](const std::function<void()>& change) {
    change();
    const auto before = step.stats().captures;
    for (int i = 0; i < 4; ++i) step(ones(2));
    return step.stats().captures - before;
  };
  const auto leaf = [] { return torch::zeros({2, 2}).requires_grad_(); };
  auto* const first = net[0]->as<Linear>();
  EXPECT_EQ(captures_after([] {}), 0);
  EXPECT_EQ(captures_after([&] { first->weight.set_requires_grad(false); }), 1);
  EXPECT_EQ(captures_after([&] { first->weight.set_data(leaf().detach()); }), 1);
  EXPECT_EQ(captures_after([&] { first->weight = leaf(); }), 1) << "the member only";
  EXPECT_EQ(captures_after([&] { net->replace_module("2", Linear(2, 2).ptr()); }), 1);
  EXPECT_EQ(captures_after([&] { net->replace_module("1", torch::nn::Tanh().ptr()); }), 1);
  EXPECT_EQ(captures_after([&] { first->register_parameter("scale", leaf()); }), 1);
  EXPECT_EQ(captures_after([&] { first->register_buffer("count", torch::ones({1})); }), 1);
  EXPECT_EQ(captures_after([] {}), 0);
}

TEST_F(GraphedStepTest, AChangedHyperParameterIsCapturedAgain) {
  torch::optim::SGD optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, training(optimizer), options({.optimizers = {&optimizer}}));
  for (int i = 0; i < 5; ++i) step(ones(4));
  EXPECT_EQ(step.stats().captures, 1);
  optimizer.param_groups()[0].options().set_lr(0.01);
  step(ones(4));
  EXPECT_EQ(step.stats().eager, 4) << "runs eagerly with the new rate";
  step(ones(4));
  EXPECT_EQ(step.stats().captures, 2);
}

TEST_F(GraphedStepTest, AHyperParameterThatChangesAtEachCallIsNeverFrozen) {
  torch::optim::SGD optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, training(optimizer), options({.optimizers = {&optimizer}}));
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 40; ++i) {
    optimizer.param_groups()[0].options().set_lr(0.1 / (i + 1));
    step(ones(4));
  }
  EXPECT_EQ(step.stats().eager, 40);
  EXPECT_EQ(step.stats().captures, 0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("without a speedup"));
}

TEST_F(GraphedStepTest, AChangedModeOrParameterIsCapturedAgain) {
  torch::nn::Linear net(2, 1);
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; },
      options({.modules = {net}, .warmup = 2}));
  const auto captures = [&] {
    for (int i = 0; i < 4; ++i) step(ones(4));
    return step.stats().captures;
  };
  EXPECT_EQ(captures(), 1);
  net->eval();
  EXPECT_EQ(captures(), 2);
  net->weight.set_data(torch::zeros({1, 2}));
  EXPECT_EQ(captures(), 3);
  net->bias.requires_grad_(false);
  EXPECT_EQ(captures(), 4);
  EXPECT_EQ(captures(), 4);
}

TEST_F(GraphedStepTest, LoadedOptimizerStateIsCapturedAgain) {
  torch::optim::SGD optimizer({weight_}, torch::optim::SGDOptions(0.1).momentum(0.9));
  GraphedStep step(torch::kCPU, training(optimizer), options({.optimizers = {&optimizer}}));
  for (int i = 0; i < 5; ++i) step(ones(4));
  auto& state = static_cast<torch::optim::SGDParamState&>(*optimizer.state().begin()->second);
  state.momentum_buffer(torch::zeros({2}));
  step(ones(4));
  EXPECT_EQ(step.stats().eager, 4);
}

TEST_F(GraphedStepTest, AccumulatedGradientsAreWatched) {
  torch::optim::SGD optimizer({weight_}, 0.1);
  GraphedStep watched(
      torch::kCPU,
      [&](const Tensors& inputs) -> Tensors {
        (inputs[0] * weight_).sum().backward();
        return {};
      },
      options({.optimizers = {&optimizer}, .warmup = 2}));
  for (int i = 0; i < 5; ++i) watched(ones(1));
  EXPECT_EQ(watched.stats().replays, 3) << "adds to one gradient";
  optimizer.zero_grad();
  watched(ones(1));
  EXPECT_EQ(watched.stats().replays, 3) << "that is gone: eager";
  EXPECT_EQ(weight_.grad()[0].item<float>(), 1);
}

TEST_F(GraphedStepTest, DroppedGradientsAreRestored) {
  torch::optim::SGD optimizer({weight_}, 0.1);
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) -> Tensors {
        (inputs[0] * weight_).sum().backward();
        return {};
      },
      options({.optimizers = {&optimizer}, .warmup = 2}));
  for (int i = 0; i < 6; ++i) {
    optimizer.zero_grad();
    step(ones(1));
    EXPECT_TRUE(weight_.grad().defined());
  }
  EXPECT_EQ(step.stats().replays, 4);
}

TEST_F(GraphedStepTest, HostStepCountsAdvance) {
  torch::optim::RMSprop optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, training(optimizer), options({.optimizers = {&optimizer}}));
  for (int i = 0; i < 7; ++i) step(ones(4));
  const auto& state = static_cast<torch::optim::RMSpropParamState&>(*optimizer.state().begin()->second);
  EXPECT_EQ(state.step(), 7);
}

}  // namespace
}  // namespace lockstep
