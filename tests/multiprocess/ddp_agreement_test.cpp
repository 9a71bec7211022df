// SPDX-License-Identifier: BSD-3-Clause
// What DistributedDataParallel does at construction, between real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const testing::Scenario starts_equal("ddp starts equal", [] {
  const auto context = init();
  torch::manual_seed(100 + context.rank());
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  net->named_buffers()["1.running_mean"].fill_(context.rank() + 5);
  const DistributedDataParallel ddp(net);
  for (const auto& tensors : {net->named_parameters(), net->named_buffers()}) {
    for (const auto& item : tensors) {
      auto of_rank_0 = item.value().detach().clone();
      context.group().broadcast(of_rank_0, 0);
      EXPECT_TRUE(torch::equal(of_rank_0, item.value())) << item.key();
    }
  }
  EXPECT_EQ(net->named_buffers()["1.running_mean"][0].item<float>(), 5);
});

TEST(DdpAgreement, ParametersAndBuffersComeFromRank0) {
  testing::expect_all_passed(testing::run_ranks(starts_equal, {.world_size = 3}));
}

const testing::Scenario other_shape("ddp other shape", [] {
  const auto context = init();
  const torch::nn::Linear net(3, context.rank() == 1 ? 5 : 4);
  EXPECT_THAT([&] { DistributedDataParallel ddp(net); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("parameter weight"), HasSubstr("[4, 3]"),
                                               HasSubstr("[5, 3]"), HasSubstr("rank 0 has"),
                                               HasSubstr("rank 1 has"))));
});

TEST(DdpAgreement, AnotherShapeIsNamedOnEveryRank) {
  testing::expect_all_passed(testing::run_ranks(other_shape, {.world_size = 3}));
}

const testing::Scenario more_parameters("ddp more parameters", [] {
  const auto context = init();
  const torch::nn::Linear net(torch::nn::LinearOptions(3, 4).bias(context.rank() == 0));
  EXPECT_THAT([&] { DistributedDataParallel ddp(net); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("bias"), HasSubstr("rank 1 has"))));
});

TEST(DdpAgreement, AMissingParameterIsNamed) {
  testing::expect_all_passed(testing::run_ranks(more_parameters));
}

const testing::Scenario other_options("ddp other options", [] {
  const auto context = init();
  const torch::nn::Linear net(3, 4);
  EXPECT_THAT([&] { DistributedDataParallel ddp(net, {.broadcast_buffers = context.rank() == 0}); },
              ThrowsMessage<DesyncError>(HasSubstr("broadcast_buffers=false")));
});

TEST(DdpAgreement, OtherOptionsAreNamed) { testing::expect_all_passed(testing::run_ranks(other_options)); }

const testing::Scenario averages("ddp averages", [] {
  const auto context = init();
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  DistributedDataParallel ddp(net);
  for (int step = 0; step < 4; ++step) {
    ddp->zero_grad();
    ddp->forward(torch::full({1, 2}, context.rank() + 1.0F)).sum().backward();
    EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 2}, 1.5F))) << net->weight.grad();
  }
});

TEST(DdpAgreement, GradientsAreTheMeanOverRanks) { testing::expect_all_passed(testing::run_ranks(averages)); }

const testing::Scenario of_a_subgroup("ddp of a subgroup", [] {
  const auto context = init();
  const auto group = context.new_group({1, 2});
  if (!group) return;
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  DistributedDataParallel ddp(net, {.process_group = group});
  ddp->forward(torch::full({1, 2}, static_cast<float>(context.rank()))).sum().backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 2}, 1.5F)));
});

TEST(DdpAgreement, TakesASubgroup) {
  testing::expect_all_passed(testing::run_ranks(of_a_subgroup, {.world_size = 3}));
}

// One rank leaves a parameter out; it says so, and the other learns that it is gone instead of hanging.
const testing::Scenario one_leaves_out("ddp one leaves out", [] {
  const auto context = init({.timeout = std::chrono::seconds(20)});
  struct Net : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x, bool both) {
      auto y = a->forward(x);
      return both ? b->forward(y) : y;
    }
    torch::nn::Linear a{register_module("a", torch::nn::Linear(2, 2))};
    torch::nn::Linear b{register_module("b", torch::nn::Linear(2, 2))};
  };
  DistributedDataParallel ddp(std::make_shared<Net>());
  for (int step = 0; step < 3; ++step)
    ddp->forward(torch::ones({1, 2}), context.rank() == 0).sum().backward();
});

TEST(DdpAgreement, AParameterLeftOutOnOneRankEndsBoth) {
  const auto results = testing::run_ranks(one_leaves_out);
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_THAT(results[1].err, AllOf(HasSubstr("b.weight"), HasSubstr("rank 1 of 2")));
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("given up by other ranks"), HasSubstr("b.weight")));
}

}  // namespace
}  // namespace lockstep
