// SPDX-License-Identifier: BSD-3-Clause
// Backward passes that go wrong, on all ranks or on one: everybody is told, and can go on.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/backends.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// The identity; its backward throws when it is asked to.
struct Trap : torch::autograd::Function<Trap> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool armed) {
    context->saved_data["armed"] = armed;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["armed"].toBool()) throw std::runtime_error("sprung");
    return {gradients[0], at::Tensor()};
  }
};

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool use_last = true, bool trap = false, bool refuse = false) {
    if (refuse) throw std::runtime_error("refused");
    const auto h = Trap::apply(torch::tanh(first->forward(x)), trap);
    return use_last ? last->forward(h) : h;
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 4))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(4, 4))};
};
TORCH_MODULE(Net);

// A bucket for each layer, as soon as the order is known.
DistributedDataParallelOptions small_buckets() { return {.bucket_cap_mb = 0.00005}; }

// A step with inputs that make its averaged gradients known: those of one process with the mean of the
// losses.
void expect_a_right_step(DistributedDataParallel<Net>& ddp, int rank, int ranks) {
  ddp->zero_grad();
  ddp->forward(torch::full({1, 4}, 0.1 * (rank + 1))).sum().backward();
  const auto gradient = ddp->module()->first->weight.grad().clone();
  ddp->zero_grad();
  at::Tensor loss = torch::zeros({});
  for (int i = 0; i < ranks; ++i)
    loss = loss + ddp->module()->forward(torch::full({1, 4}, 0.1 * (i + 1))).sum();
  (loss / ranks).backward();
  EXPECT_TRUE(torch::allclose(gradient, ddp->module()->first->weight.grad(), 1e-5, 1e-7));
}

class DdpTrouble : public testing::EveryBackend {};

const testing::Scenario unused_on_one("ddp unused on one", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  DistributedDataParallel ddp(net);
  const auto x = torch::ones({1, 4});
  if (context.rank() == 1) {  // of two or three
    ddp->forward(x, false).sum().backward();
    EXPECT_THAT(
        [&] { ddp->forward(x); },
        ThrowsMessage<Error>(AllOf(HasSubstr("last.weight, last.bias"), HasSubstr("find_unused_parameters"),
                                   HasSubstr("rank 0 (pid"), HasSubstr(": none"))));
  } else {
    const auto loss = ddp->forward(x).sum();
    EXPECT_THAT(
        [&] { loss.backward(); },
        ThrowsMessage<DesyncError>(AllOf(HasSubstr("rank 1 (pid"), HasSubstr("last.weight, last.bias"))));
  }
});

TEST_P(DdpTrouble, AParameterLeftOutOnOneRankIsNamedOnAll) { run(unused_on_one); }

const testing::Scenario unused_on_all("ddp unused on all", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  const auto x = torch::ones({1, 4});
  {
    DistributedDataParallel ddp(net);
    ddp->forward(x, false).sum().backward();
    EXPECT_THAT([&] { ddp->forward(x); },
                ThrowsMessage<Error>(AllOf(HasSubstr("last.weight, last.bias"), HasSubstr("rank 0"),
                                           HasSubstr("rank 1"), Not(HasSubstr("none")))));
  }
  // The same group goes on with what the error advises.
  DistributedDataParallel ddp(net, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) ddp->forward(x, false).sum().backward();
  EXPECT_FALSE(net->last->weight.grad().defined());
  expect_a_right_step(ddp, context.rank(), context.world_size());
});

TEST_P(DdpTrouble, AParameterLeftOutOnAllRanksIsNamedForEach) { run(unused_on_all); }

// Wherever it happens: in the first backward (one bucket, nothing under way), or later (a bucket under way).
void throw_and_go_on(const Context& context, const std::vector<int>& culprits) {
  const bool culprit = std::ranges::find(culprits, context.rank()) != culprits.end();
  const auto x = torch::ones({1, 4});
  for (const int good_steps : {0, 3}) {
    Net net;
    DistributedDataParallel ddp(net, small_buckets());
    for (int step = 0; step < good_steps; ++step)
      expect_a_right_step(ddp, context.rank(), context.world_size());
    const auto loss = ddp->forward(x, true, culprit).sum();
    if (culprit) {
      EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<std::runtime_error>(HasSubstr("sprung")));
    } else {
      EXPECT_THAT([&] { loss.backward(); },
                  ThrowsMessage<DesyncError>(AllOf(HasSubstr("rank " + std::to_string(culprits.front())),
                                                   HasSubstr("ended by an exception"))));
    }
    for (int step = 0; step < 3; ++step) expect_a_right_step(ddp, context.rank(), context.world_size());
  }
}

const testing::Scenario all_throw("ddp all throw", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  throw_and_go_on(context, {0, 1, 2});
});

TEST_P(DdpTrouble, AnExceptionInEveryBackwardLeavesADdpThatGoesOn) { run(all_throw); }

const testing::Scenario one_throws("ddp one throws", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  throw_and_go_on(context, {1});
});

TEST_P(DdpTrouble, AnExceptionInOneBackwardIsToldToTheOthersAndAllGoOn) { run(one_throws); }

const testing::Scenario forward_throws("ddp forward throws", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  DistributedDataParallel ddp(net, small_buckets());
  for (int step = 0; step < 4; ++step) {
    EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true, false, true), std::runtime_error);
    expect_a_right_step(ddp, context.rank(), context.world_size());
  }
});

TEST_P(DdpTrouble, AnExceptionInForwardLeavesADdpThatGoesOn) { run(forward_throws); }

const testing::Scenario one_forward_throws("ddp one forward throws", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  DistributedDataParallel ddp(net, small_buckets());
  for (int round = 0; round < 3; ++round) {
    if (context.rank() == 1) {
      EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true, false, true), std::runtime_error);
    } else {
      const auto loss = ddp->forward(torch::ones({1, 4})).sum();
      EXPECT_THAT([&] { loss.backward(); },
                  ThrowsMessage<DesyncError>(AllOf(HasSubstr("rank 1"), HasSubstr("ended by an exception"))));
    }
    expect_a_right_step(ddp, context.rank(), context.world_size());
  }
});

TEST_P(DdpTrouble, AnExceptionInOneForwardIsToldToTheOthersAndAllGoOn) { run(one_forward_throws); }

const testing::Scenario stepped_in_backward("ddp stepped in backward and threw", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  auto options = small_buckets();
  options.optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.1));
  };
  DistributedDataParallel ddp(net, options);
  EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true, true).sum().backward(), std::runtime_error);
  EXPECT_THAT(
      [&] {
        ddp->forward(torch::ones({1, 4}));
      },
      ThrowsMessage<Error>(HasSubstr("cannot go on with optimizer_in_backward")));
});

TEST_P(DdpTrouble, WhereParametersMayDifferItDoesNotGoOn) { run(stepped_in_backward); }

// An exception after a nested backward has ended is no unused parameter.
const testing::Scenario nested_throws("ddp nested backward throws", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  struct Nested : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x, bool trap) {
      const auto h = Trap::apply(first->forward(x), trap);
      return checkpoint({.use_reentrant = true}, last, h);
    }
    torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 4))};
    torch::nn::Linear last{register_module("last", torch::nn::Linear(4, 4))};
  };
  const auto net = std::make_shared<Nested>();
  DistributedDataParallel ddp(net);
  for (int round = 0; round < 2; ++round) {
    EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true).sum().backward(), std::runtime_error);
    net->zero_grad();
    ddp->forward(torch::ones({1, 4}), false).sum().backward();
    EXPECT_TRUE(torch::equal(net->last->bias.grad(), torch::ones({4})));
  }
});

TEST_P(DdpTrouble, AnExceptionAfterANestedBackwardIsNoUnusedParameter) { run(nested_throws); }

const testing::Scenario static_goes_on("ddp static graph goes on", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  auto options = small_buckets();
  options.static_graph = true;
  options.gradient_as_bucket_view = false;
  DistributedDataParallel ddp(net, options);
  for (int round = 0; round < 3; ++round) {
    for (int step = 0; step < 2; ++step) expect_a_right_step(ddp, context.rank(), context.world_size());
    EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true, true).sum().backward(), std::runtime_error);
  }
});

TEST_P(DdpTrouble, AStaticGraphStaysKnownAfterAnException) { run(static_goes_on); }

const testing::Scenario destroyed("ddp destroyed after exception", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  {
    DistributedDataParallel ddp(net);
    EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true, true).sum().backward(), std::runtime_error);
  }
  net->zero_grad();
  DistributedDataParallel ddp(net);
  expect_a_right_step(ddp, context.rank(), context.world_size());
});

TEST_P(DdpTrouble, ADdpCanBeDestroyedAfterAnException) { run(destroyed); }

INSTANTIATE_TEST_SUITE_P(Ranks, DdpTrouble, testing::backends_and_ranks({2, 3}), testing::name_of_case);

}  // namespace
}  // namespace lockstep
