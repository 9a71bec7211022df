// SPDX-License-Identifier: BSD-3-Clause
// Which threads are part of a step that is warmed up or captured.
#include <atomic>
#include <barrier>
#include <chrono>
#include <future>
#include <thread>

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_phase.h"
#include "unit/graphs/fake_graph_device.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = GraphedStep::Tensors;

template <typename Function>
auto in_another_thread(const Function& function) {
  return std::async(std::launch::async, function).get();
}

GraphedStepOptions with_fake_device() {
  return {.warmup = 2, .graph_device = std::make_shared<testing::FakeGraphDevice>()};
}

TEST(GraphThreads, OtherThreadsAreInNoPhase) {
  for (const auto phase : {GraphPhase::warm_up, GraphPhase::capture}) {
    const GraphPhaseScope scope(phase);
    EXPECT_EQ(graph_phase(), phase);
    EXPECT_EQ(in_another_thread([] { return graph_phase(); }), GraphPhase::none);
    EXPECT_THAT([] { refuse_in_graph("this", "that"); },
                ThrowsMessage<Error>(HasSubstr("cannot be captured")));
    in_another_thread([] { refuse_in_graph("this", "that"); });
  }
  EXPECT_EQ(graph_phase(), GraphPhase::none);
}

TEST(GraphThreads, ThreadsOfTheStepAreInItsPhase) {
  std::optional<at::ThreadLocalState> state;
  const auto as_the_step = [&] {
    return in_another_thread([&] {
      const at::ThreadLocalStateGuard guard(*state);
      return graph_phase();
    });
  };
  {
    const GraphPhaseScope scope(GraphPhase::capture);
    state.emplace();
    EXPECT_EQ(as_the_step(), GraphPhase::capture);
  }
  EXPECT_EQ(as_the_step(), GraphPhase::none) << "once it has ended, too";
}

// Deep enough that autograd continues in another thread.
struct Deeper : torch::autograd::Function<Deeper> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t depth) {
    context->saved_data["depth"] = depth;
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto depth = context->saved_data["depth"].toInt();
    if (depth == 0) {
      thread = std::this_thread::get_id();
      phase = graph_phase();
    } else {
      const c10::AutoGradMode with_gradients(true);
      Deeper::apply(torch::ones({1}, torch::requires_grad()), depth - 1).backward(torch::ones({1}));
    }
    return {gradients[0], {}};
  }
  static inline std::thread::id thread;
  static inline GraphPhase phase;
};

TEST(GraphThreads, AutogradThreadsAreInThePhaseOfTheirBackwardPass) {
  for (const auto phase : {GraphPhase::none, GraphPhase::warm_up}) {
    std::optional<GraphPhaseScope> scope;
    if (phase != GraphPhase::none) scope.emplace(phase);
    Deeper::apply(torch::ones({1}, torch::requires_grad()), 100).backward(torch::ones({1}));
    EXPECT_NE(Deeper::thread, std::this_thread::get_id()) << "deep enough";
    EXPECT_EQ(Deeper::phase, phase);
  }
}

TEST(GraphThreads, OperatorsOfOtherThreadsDoNotCountForTheStep) {
  int call = 0;
  GraphedStep step(
      torch::kCPU,
      [&](const Tensors& inputs) {
        // Like a loader or a checkpoint writer: a different number of operators each time, and one that
        // waits.
        in_another_thread([n = ++call] {
          for (int i = 0; i < n; ++i) torch::ones({2}).sum().item<float>();
        });
        return Tensors{inputs[0] + 1};
      },
      with_fake_device());
  for (int i = 0; i < 4; ++i) step({torch::ones({2})});
  EXPECT_EQ(step.stats().replays, 2);
}

TEST(GraphThreads, SeveralWarmUpAtOnce) {
  std::barrier meeting(2);
  const auto train = [&] {
    GraphedStep step(
        torch::kCPU,
        [&](const Tensors& inputs) {
          if (graph_phase() == GraphPhase::warm_up) meeting.arrive_and_wait();
          return Tensors{inputs[0] + 1};
        },
        with_fake_device());
    for (int i = 0; i < 4; ++i) step({torch::ones({2})});
    return step.stats().replays;
  };
  auto other = std::async(std::launch::async, train);
  EXPECT_EQ(train(), 2);
  EXPECT_EQ(other.get(), 2);
}

TEST(GraphThreads, CapturesTakeTurns) {
  std::atomic<bool> second_began = false;
  std::thread other;
  {
    const GraphPhaseScope first(GraphPhase::capture);
    other = std::thread([&] {
      const GraphPhaseScope second(GraphPhase::capture);
      second_began = true;
    });
    // Long enough for a second one that does not wait.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!second_began && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_FALSE(second_began);
  }
  other.join();
  EXPECT_TRUE(second_began);
}

TEST(GraphThreads, ReplayActionsBelongToTheEnclosingCapture) {
  const int owner = 0;
  int done = 0;
  add_replay_action(&owner, [&] { ++done; });
  const GraphPhaseScope scope(GraphPhase::capture);
  EXPECT_TRUE(take_replay_actions().empty()) << "of no capture";
  in_another_thread([&] { add_replay_action(&owner, [&] { ++done; }); });
  EXPECT_TRUE(take_replay_actions().empty()) << "another thread's";
  for (int i = 0; i < 2; ++i) add_replay_action(&owner, [&] { ++done; });
  for (const auto& action : take_replay_actions()) action();
  EXPECT_EQ(done, 1) << "once for each owner";
}

}  // namespace
}  // namespace lockstep
