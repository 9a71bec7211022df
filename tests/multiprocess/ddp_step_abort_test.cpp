// SPDX-License-Identifier: BSD-3-Clause
// Steps that fail on all ranks or on one: all ranks get the reason and can continue.
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "comm/group_state.h"
#include "multiprocess/backends.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// The identity; its backward throws if armed.
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
DistributedDataParallelOptions small_buckets(std::optional<ProcessGroup> group = std::nullopt) {
  return {.process_group = std::move(group), .bucket_cap_mb = 0.00005};
}

// The ranks of `context` in a group that does not know that they share a host.
ProcessGroup without_node_group(const Context& context) {
  const auto group = context.group();
  auto info = comm::state_of(group).info();
  info.node_group.reset();
  return {group.backend(), std::move(info)};
}

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

class DdpStepAbort : public testing::EveryBackend {};

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

TEST_P(DdpStepAbort, AnUnusedParameterOnOneRankIsNamedOnAll) { run(unused_on_one); }

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
  // The group stays usable with the option that the error advises.
  DistributedDataParallel ddp(net, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) ddp->forward(x, false).sum().backward();
  EXPECT_FALSE(net->last->weight.grad().defined());
  expect_a_right_step(ddp, context.rank(), context.world_size());
});

TEST_P(DdpStepAbort, AnUnusedParameterOnAllRanksIsNamedForEach) { run(unused_on_all); }

// Wherever it happens: in the first backward (one bucket, nothing under way), or later (a bucket under way).
void throw_and_continue(const Context& context, const std::vector<int>& culprits,
                        const std::optional<ProcessGroup>& group = std::nullopt) {
  const bool culprit = std::ranges::find(culprits, context.rank()) != culprits.end();
  const auto x = torch::ones({1, 4});
  for (const int good_steps : {0, 3}) {
    Net net;
    DistributedDataParallel ddp(net, small_buckets(group));
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
  throw_and_continue(context, {0, 1, 2});
});

TEST_P(DdpStepAbort, AnExceptionInEveryBackwardLeavesAUsableDdp) { run(all_throw); }

const testing::Scenario one_throws("ddp one throws", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  throw_and_continue(context, {1});
});

TEST_P(DdpStepAbort, AnExceptionInOneBackwardReachesTheOthersAndAllContinue) { run(one_throws); }

const testing::Scenario forward_throws("ddp forward throws", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(30)});
  Net net;
  DistributedDataParallel ddp(net, small_buckets());
  for (int step = 0; step < 4; ++step) {
    EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true, false, true), std::runtime_error);
    expect_a_right_step(ddp, context.rank(), context.world_size());
  }
});

TEST_P(DdpStepAbort, AnExceptionInForwardLeavesAUsableDdp) { run(forward_throws); }

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

TEST_P(DdpStepAbort, AnExceptionInOneForwardReachesTheOthersAndAllContinue) { run(one_forward_throws); }

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
      ThrowsMessage<Error>(HasSubstr("cannot continue with optimizer_in_backward")));
});

TEST_P(DdpStepAbort, ItDoesNotContinueIfParametersMayDiffer) { run(stepped_in_backward); }

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

TEST_P(DdpStepAbort, AnExceptionAfterANestedBackwardIsNotAnUnusedParameter) { run(nested_throws); }

const testing::Scenario static_continues("ddp static graph continues", [] {
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

TEST_P(DdpStepAbort, AStaticGraphStaysKnownAfterAnException) { run(static_continues); }

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

TEST_P(DdpStepAbort, ADdpCanBeDestroyedAfterAnException) { run(destroyed); }

Context init_gloo() { return init({.backend = "gloo", .timeout = std::chrono::seconds(30)}); }

const testing::Scenario hosts_all_throw("ddp all throw on several hosts", [] {
  const auto context = init_gloo();
  throw_and_continue(context, {0, 1, 2}, without_node_group(context));
});

TEST(DdpStepAbortBetweenHosts, AnExceptionInEveryBackwardLeavesAUsableDdp) {
  testing::expect_all_passed(testing::run_ranks(hosts_all_throw, {.world_size = 3}));
}

const testing::Scenario hosts_one_throws("ddp one throws on several hosts", [] {
  const auto context = init_gloo();
  throw_and_continue(context, {1}, without_node_group(context));
});

TEST(DdpStepAbortBetweenHosts, AnExceptionInOneBackwardReachesTheOthersAndAllContinue) {
  testing::expect_all_passed(testing::run_ranks(hosts_one_throws, {.world_size = 3}));
}

const testing::Scenario hosts_one_forward_throws("ddp one forward throws on several hosts", [] {
  const auto context = init_gloo();
  Net net;
  DistributedDataParallel ddp(net, small_buckets(without_node_group(context)));
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

TEST(DdpStepAbortBetweenHosts, AnExceptionInOneForwardReachesTheOthersAndAllContinue) {
  testing::expect_all_passed(testing::run_ranks(hosts_one_forward_throws, {.world_size = 2}));
}

const testing::Scenario hosts_unused("ddp unused on one of several hosts", [] {
  const auto context = init_gloo();
  Net net;
  DistributedDataParallel ddp(net, {.process_group = without_node_group(context)});
  const auto x = torch::ones({1, 4});
  if (context.rank() == 1) {
    ddp->forward(x, false).sum().backward();
    EXPECT_THAT([&] { ddp->forward(x); },
                ThrowsMessage<Error>(AllOf(HasSubstr("last.weight, last.bias"), HasSubstr("rank 0: none"))));
  } else {
    const auto loss = ddp->forward(x).sum();
    EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<DesyncError>(HasSubstr(
                                              "rank 1: parameters that took no part in its last backward: "
                                              "last.weight, last.bias")));
  }
});

TEST(DdpStepAbortBetweenHosts, AnUnusedParameterOnOneRankIsNamedOnAll) {
  testing::expect_all_passed(testing::run_ranks(hosts_unused, {.world_size = 2}));
}

// NaN in the gradients of a good step is no announcement.
const testing::Scenario hosts_nan("ddp NaN on several hosts", [] {
  const auto context = init_gloo();
  Net net;
  DistributedDataParallel ddp(net, small_buckets(without_node_group(context)));
  for (int step = 0; step < 3; ++step) {
    ddp->zero_grad();
    (ddp->forward(torch::ones({1, 4})) * std::numeric_limits<double>::quiet_NaN()).sum().backward();
    EXPECT_TRUE(torch::isnan(net->first->weight.grad()).all().item<bool>());
    expect_a_right_step(ddp, context.rank(), context.world_size());
  }
});

TEST(DdpStepAbortBetweenHosts, NanGradientsAreNotAFailedStep) {
  testing::expect_all_passed(testing::run_ranks(hosts_nan, {.world_size = 2}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DdpStepAbort, testing::backends_and_ranks({2, 3}), testing::name_of_case);

}  // namespace
}  // namespace lockstep
