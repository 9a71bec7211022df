// SPDX-License-Identifier: BSD-3-Clause
// Steps that cannot be graphs, and what an error leaves.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_phase.h"
#include "unit/graphs/graphed_step_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class GraphedStepErrors : public testing::GraphedStepTest {};

TEST_F(GraphedStepErrors, ValuesThatChangeBetweenCallsAreNamed) {
  int call = 0;
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{inputs[0].add(1, ++call)}; }, options());
  for (int i = 0; i < 3; ++i) step(ones(1));
  EXPECT_THAT([&] { step(ones(1)); },
              ThrowsMessage<Error>(AllOf(HasSubstr("the step differs between calls"), HasSubstr("aten::add("),
                                         HasSubstr("1 3"), HasSubstr("1 4"))));
  EXPECT_EQ(device_->replays, 0);
}

TEST_F(GraphedStepErrors, AdamHiddenInAStepIsFound) {
  torch::optim::Adam optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, training(optimizer), options());
  for (int i = 0; i < 3; ++i) step(ones(4));
  EXPECT_THAT([&] { step(ones(4)); }, ThrowsMessage<Error>(HasSubstr("the step differs between calls")));
}

TEST_F(GraphedStepErrors, OptimizersWithHostStepCountsAreRejected) {
  const auto refused = [&](torch::optim::Optimizer& optimizer, const std::string& text) {
    EXPECT_THAT(
        [&] { GraphedStep step(torch::kCPU, training(optimizer), options({.optimizers = {&optimizer}})); },
        ThrowsMessage<ArgumentError>(AllOf(HasSubstr(text), HasSubstr("call it after the GraphedStep"))));
  };
  torch::optim::Adam adam({weight_}, 0.1);
  torch::optim::AdamW adamw({weight_}, 0.1);
  torch::optim::LBFGS lbfgs({weight_}, 0.1);
  torch::optim::Adagrad adagrad({weight_}, torch::optim::AdagradOptions(0.1).lr_decay(0.1));
  struct OwnSGD : torch::optim::SGD {
    using SGD::SGD;
  } own({weight_}, torch::optim::SGDOptions(0.1));
  refused(adam, "bias correction");
  refused(adamw, "bias correction");
  refused(lbfgs, "LBFGS");
  refused(adagrad, "lr_decay");
  refused(own, "is unknown");
  torch::optim::Adagrad plain({weight_}, 0.1);
  EXPECT_NO_THROW(GraphedStep(torch::kCPU, training(plain), options({.optimizers = {&plain}})));
}

TEST_F(GraphedStepErrors, WaitingForTheDeviceIsNamedBeforeTheCapture) {
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) {
        return inputs[0].sum().item<float>() > 0 ? Tensors{inputs[0]} : Tensors{};
      },
      options({.warmup = 2}));
  step(ones(1));
  EXPECT_THAT([&] { step(ones(1)); }, ThrowsMessage<Error>(AllOf(HasSubstr("aten::item"),
                                                                 HasSubstr("synchronizes with the device"))));
  EXPECT_EQ(device_->records, 0);
}

TEST_F(GraphedStepErrors, CpuTensorsAreNamed) {
  // "meta" stands for the GPU: its operators compute nothing.
  const auto input = torch::ones({2}, torch::kMeta);
  GraphedStep step(
      torch::kMeta, [&](const Tensors& inputs) { return Tensors{inputs[0] * torch::tensor(2.0)}; },
      options({.warmup = 2}));
  step({input});
  EXPECT_THAT([&] { step({input}); }, ThrowsMessage<Error>(AllOf(HasSubstr("aten::mul takes a tensor on cpu"),
                                                                 HasSubstr("move it to meta"))));
  GraphedStep fine(
      torch::kMeta, [&](const Tensors& inputs) { return Tensors{inputs[0] * 2.0}; }, options({.warmup = 2}));
  for (int i = 0; i < 4; ++i) fine({input});
  EXPECT_EQ(fine.stats().replays, 2) << "a number is none";
  EXPECT_THAT([&] { fine({torch::ones({2})}); },
              ThrowsMessage<ArgumentError>(HasSubstr("input 0 is on cpu")));
}

TEST_F(GraphedStepErrors, InputsThatTheStepWritesToAreRejected) {
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{inputs[0].mul_(2)}; }, options());
  EXPECT_THAT([&] { step(ones(1)); }, ThrowsMessage<Error>(HasSubstr("writes to its input 0")));
}

TEST_F(GraphedStepErrors, WrongInputsAreNamed) {
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return inputs; }, options());
  const auto refused = [&](const torch::Tensor& input, const std::string& text) {
    EXPECT_THAT([&] { step({torch::ones({1}), input}); }, ThrowsMessage<ArgumentError>(HasSubstr(text)));
  };
  refused({}, "input 1 is undefined");
  refused(torch::ones({1}, torch::requires_grad()), "input 1 requires a gradient");
  refused(torch::ones({2}).to_sparse(), "input 1 is sparse");
}

TEST_F(GraphedStepErrors, AnErrorDuringCaptureRestoresEverything) {
  torch::optim::RMSprop optimizer({weight_}, 0.1);
  const auto inner = training(optimizer);
  bool fail = true;
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) {
        auto outputs = inner(inputs);
        if (fail && graph_phase() == GraphPhase::capture) throw std::runtime_error("on purpose");
        return outputs;
      },
      options({.optimizers = {&optimizer}}));
  for (int i = 0; i < 3; ++i) step(ones(4));
  const auto gradient = weight_.grad();
  const auto& state = static_cast<torch::optim::RMSpropParamState&>(*optimizer.state().begin()->second);
  EXPECT_THAT([&] { step(ones(4)); },
              ThrowsMessage<Error>(AllOf(HasSubstr("during capture"), HasSubstr("on purpose"))));
  EXPECT_EQ(graph_phase(), GraphPhase::none);
  EXPECT_TRUE(weight_.grad().is_same(gradient));
  EXPECT_EQ(state.step(), 3);
  EXPECT_EQ(device_->replays, 0);
  fail = false;
  step(ones(4));
  EXPECT_EQ(device_->replays, 1);
  EXPECT_EQ(state.step(), 4);
}

TEST_F(GraphedStepErrors, StateCreatedDuringCaptureIsRejectedAndRemoved) {
  const auto late = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({weight_, late}, torch::optim::SGDOptions(0.1).momentum(0.9));
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) -> Tensors {
        optimizer.zero_grad();
        auto loss = (inputs[0] * weight_).sum();
        if (graph_phase() == GraphPhase::capture) loss = (inputs[0] * late).sum();
        loss.backward();
        optimizer.step();
        return {};
      },
      options({.optimizers = {&optimizer}}));
  for (int i = 0; i < 3; ++i) step(ones(4));
  EXPECT_THAT([&] { step(ones(4)); }, ThrowsMessage<Error>(HasSubstr("raise warmup")));
  EXPECT_EQ(optimizer.state().size(), 1U);
}

TEST_F(GraphedStepErrors, AnUncapturableCodePathIsRejectedInTheFirstStep) {
  const auto collective = [] { refuse_in_graph("all_reduce over gloo", "use NCCL"); };
  EXPECT_NO_THROW(collective());
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) {
        collective();
        return inputs;
      },
      options());
  EXPECT_THAT(
      [&] { step(ones(1)); },
      ThrowsMessage<Error>(HasSubstr("all_reduce over gloo cannot be captured in a graph: use NCCL")));
}

TEST_F(GraphedStepErrors, AnAutocastAroundItMustNotKeepCastWeights) {
  GraphedStep step(
      torch::kCPU, [](const Tensors& inputs) { return Tensors{inputs[0] + 1}; }, options({.warmup = 2}));
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  EXPECT_THAT([&] { step(ones(1)); }, ThrowsMessage<ArgumentError>(HasSubstr("create the Autocast within")));
  at::autocast::set_autocast_cache_enabled(false);
  for (int i = 0; i < 3; ++i) step(ones(1));
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  for (int i = 0; i < 3; ++i) step(ones(1));
  EXPECT_EQ(step.stats().captures, 2) << "another one without it";
}

TEST_F(GraphedStepErrors, NestedStepsAreRejected) {
  GraphedStep inner(
      torch::kCPU, [](const Tensors& inputs) { return inputs; }, options());
  GraphedStep outer(
      torch::kCPU, [&](const Tensors& inputs) { return inner(inputs); }, options());
  EXPECT_THAT([&] { outer(ones(1)); }, ThrowsMessage<Error>(HasSubstr("a step calls another GraphedStep")));
}

TEST_F(GraphedStepErrors, WithoutAGpuItThrowsOrRunsEagerly) {
  const auto step = [](const Tensors& inputs) { return Tensors{inputs[0] + 1}; };
  EXPECT_THAT(
      [&] { GraphedStep graphed(torch::kCPU, step); },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("graphs need a GPU"), HasSubstr("enabled = false"))));
  GraphedStep eager(torch::kCPU, step, {.enabled = false});
  for (int i = 0; i < 9; ++i) EXPECT_EQ(eager(ones(1))[0][0][0].item<float>(), 2);
  EXPECT_EQ(eager.stats().eager, 9);
}

TEST_F(GraphedStepErrors, OptionsAreChecked) {
  const auto step = [](const Tensors& inputs) { return inputs; };
  const auto make = [&](GraphedStepOptions given) {
    return [&, given] { GraphedStep graphed(torch::kCPU, step, options(given)); };
  };
  EXPECT_THAT(make({.warmup = 1}), ThrowsMessage<ArgumentError>(HasSubstr("warmup")));
  EXPECT_THAT(make({.max_graphs = 0}), ThrowsMessage<ArgumentError>(HasSubstr("max_graphs")));
  EXPECT_THAT(make({.optimizers = {nullptr}}), ThrowsMessage<ArgumentError>(HasSubstr("null")));
  torch::nn::LinearImpl in_no_pointer(4, 2);
  EXPECT_THAT(make({.modules = {in_no_pointer}}), ThrowsMessage<ArgumentError>(HasSubstr("shared_ptr")));
  EXPECT_THAT([&] { GraphedStep graphed(torch::kCPU, nullptr, options()); },
              ThrowsMessage<ArgumentError>(HasSubstr("empty")));
}

}  // namespace
}  // namespace lockstep
