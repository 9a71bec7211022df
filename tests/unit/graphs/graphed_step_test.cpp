// SPDX-License-Identifier: BSD-3-Clause
// GraphedStep with graphs that are recorded by hand: on the CPU, a "graph" calls the step again.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_phase.h"
#include "unit/graphs/fake_graph_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::FakeGraphDevice;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = GraphedStep::Tensors;

class GraphedStepTest : public ::testing::Test {
 protected:
  GraphedStepOptions options(GraphedStepOptions options = {}) const {
    options.graph_device = device_;
    return options;
  }
  static Tensors ones(std::int64_t rows) { return {torch::ones({rows, 2})}; }

  // A training step with `optimizer` on one weight.
  GraphedStep::Step training(torch::optim::Optimizer& optimizer) {
    return [this, &optimizer](const Tensors& inputs) -> Tensors {
      ++steps_;
      optimizer.zero_grad();
      auto loss = (inputs[0] * weight_).sum();
      loss.backward();
      optimizer.step();
      return {loss};
    };
  }

  std::shared_ptr<FakeGraphDevice> device_ = std::make_shared<FakeGraphDevice>();
  torch::Tensor weight_ = torch::ones({2}, torch::requires_grad());
  int steps_ = 0;
};

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

TEST_F(GraphedStepTest, ValuesThatChangeBetweenCallsAreNamed) {
  int call = 0;
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{inputs[0].add(1, ++call)}; }, options());
  for (int i = 0; i < 3; ++i) step(ones(1));
  EXPECT_THAT([&] { step(ones(1)); },
              ThrowsMessage<Error>(AllOf(HasSubstr("the step differs between calls"), HasSubstr("aten::add("),
                                         HasSubstr("1 3"), HasSubstr("1 4"))));
  EXPECT_EQ(device_->replays, 0);
}

TEST_F(GraphedStepTest, AdamHiddenInAStepIsFound) {
  torch::optim::Adam optimizer({weight_}, 0.1);
  GraphedStep step(torch::kCPU, training(optimizer), options());
  for (int i = 0; i < 3; ++i) step(ones(4));
  EXPECT_THAT([&] { step(ones(4)); }, ThrowsMessage<Error>(HasSubstr("the step differs between calls")));
}

TEST_F(GraphedStepTest, OptimizersWithHostStepCountsAreRejected) {
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

TEST_F(GraphedStepTest, WaitingForTheDeviceIsNamedBeforeTheCapture) {
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

TEST_F(GraphedStepTest, CpuTensorsAreNamed) {
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

TEST_F(GraphedStepTest, InputsThatTheStepWritesToAreRejected) {
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return Tensors{inputs[0].mul_(2)}; }, options());
  EXPECT_THAT([&] { step(ones(1)); }, ThrowsMessage<Error>(HasSubstr("writes to its input 0")));
}

TEST_F(GraphedStepTest, WrongInputsAreNamed) {
  GraphedStep step(
      torch::kCPU, [&](const Tensors& inputs) { return inputs; }, options());
  const auto refused = [&](const torch::Tensor& input, const std::string& text) {
    EXPECT_THAT([&] { step({torch::ones({1}), input}); }, ThrowsMessage<ArgumentError>(HasSubstr(text)));
  };
  refused({}, "input 1 is undefined");
  refused(torch::ones({1}, torch::requires_grad()), "input 1 requires a gradient");
  refused(torch::ones({2}).to_sparse(), "input 1 is sparse");
}

TEST_F(GraphedStepTest, AnErrorDuringCaptureRestoresEverything) {
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

TEST_F(GraphedStepTest, StateCreatedDuringCaptureIsRejectedAndRemoved) {
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

TEST_F(GraphedStepTest, AnUncapturableCodePathIsRejectedInTheFirstStep) {
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

TEST_F(GraphedStepTest, AnAutocastAroundItMustNotKeepCastWeights) {
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

TEST_F(GraphedStepTest, NestedStepsAreRejected) {
  GraphedStep inner(
      torch::kCPU, [](const Tensors& inputs) { return inputs; }, options());
  GraphedStep outer(
      torch::kCPU, [&](const Tensors& inputs) { return inner(inputs); }, options());
  EXPECT_THAT([&] { outer(ones(1)); }, ThrowsMessage<Error>(HasSubstr("a step calls another GraphedStep")));
}

TEST_F(GraphedStepTest, WithoutAGpuItThrowsOrRunsEagerly) {
  const auto step = [](const Tensors& inputs) { return Tensors{inputs[0] + 1}; };
  EXPECT_THAT(
      [&] { GraphedStep graphed(torch::kCPU, step); },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("graphs need a GPU"), HasSubstr("enabled = false"))));
  GraphedStep eager(torch::kCPU, step, {.enabled = false});
  for (int i = 0; i < 9; ++i) EXPECT_EQ(eager(ones(1))[0][0][0].item<float>(), 2);
  EXPECT_EQ(eager.stats().eager, 9);
}

TEST_F(GraphedStepTest, OptionsAreChecked) {
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
