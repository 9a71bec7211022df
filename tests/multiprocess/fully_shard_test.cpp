// SPDX-License-Identifier: BSD-3-Clause
// fully_shard(): the bits of DistributedDataParallel, with shared and with gathered parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/error_of.h"
#include "support/odd_net.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::AdamW;

FSDPModule shard(const OddNet& net, const FullyShardOptions& options) {
  for (const auto& child : net->children_to_shard()) fully_shard(*child, options);
  return fully_shard(*net, options);
}

Tensor draw_tokens(int step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
  return torch::randint(11, {2, 4});
}

Tensor rows_of(const Tensor& whole, int rank, int ranks) {
  const auto chunk = (whole.size(0) + ranks - 1) / ranks;
  const auto first = std::min(rank * chunk, whole.size(0));
  return whole.detach().narrow(0, first, std::min(chunk, whole.size(0) - first));
}

void expect_same(const FSDPModule& ours, const OddNet& net, const OddNet& expected, const Context& context) {
  const auto shards = ours.named_parameters();
  const auto whole = net->parameters(), reference = expected->parameters();
  ASSERT_EQ(shards.size(), reference.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    SCOPED_TRACE(shards[i].name);
    const auto rows = [&](const Tensor& each) { return rows_of(each, context.rank(), context.world_size()); };
    EXPECT_TRUE(shards[i].parameter.detach().equal(rows(reference[i])));
    EXPECT_TRUE(whole[i].detach().equal(reference[i].detach()));
    const auto gradient = shards[i].parameter.grad(), expected_gradient = reference[i].grad();
    ASSERT_EQ(gradient.defined(), expected_gradient.defined());
    EXPECT_TRUE(!gradient.defined() || gradient.equal(rows(expected_gradient)));
  }
}

void compare_with_ddp(const Context& context, const FullyShardOptions& options) {
  OddNet plain, net;
  DistributedDataParallel<OddNet> ddp(plain, {.find_unused_parameters = true});
  AdamW reference(plain->parameters(), 1e-2);
  const auto sharded = shard(net, options);
  AdamW optimizer(sharded.parameters(), 1e-2);
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    const bool uses_all = step % 2 == 0;
    const auto tokens = draw_tokens(step, context.rank());
    reference.zero_grad();
    const auto expected = ddp->forward(tokens, uses_all);
    expected.backward();
    if (step % 2 == 0) {
      optimizer.zero_grad();
      net->zero_grad();
    } else {
      net->zero_grad();
    }
    const auto loss = net->forward(tokens, uses_all);
    EXPECT_TRUE(loss.equal(expected));
    loss.backward();
    reference.step();
    optimizer.step();
    expect_same(sharded, net, plain, context);
  }
}

const Scenario fsdp_like_ddp("fsdp_like_ddp", [] {
  const auto context = init({.backend = backend_under_test()});
  if (backend_under_test() == "shm") compare_with_ddp(context, {});
  compare_with_ddp(context, {.share_memory = false});
  compare_with_ddp(context, {.reshard_after_forward = false, .share_memory = false});
});

class FullyShard : public EveryBackend {};
TEST_P(FullyShard, HasTheBitsOfDDP) { run(fsdp_like_ddp); }
INSTANTIATE_TEST_SUITE_P(All, FullyShard, backends_and_ranks({2, 4}), name_of_case);

}  // namespace
}  // namespace lockstep::testing
