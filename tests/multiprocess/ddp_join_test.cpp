// SPDX-License-Identifier: BSD-3-Clause
// A join of DistributedDataParallel with other objects, and of ranks without batches.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A user's own, beside a DDP: each counts its iterations over all ranks.
class Counter : public Joinable {
 public:
  explicit Counter(ProcessGroup group) : group_(std::move(group)) {}
  void count() {
    notify_join_context();
    add(1);
  }
  float total() const { return total_; }
  bool was_last() const { return was_last_; }

  void shadow_iteration() override { add(0); }
  void finish_join(bool is_last_joiner) override { was_last_ = is_last_joiner; }
  ProcessGroup join_process_group() const override { return group_; }
  c10::Device join_device() const override { return c10::kCPU; }

 private:
  void add(float here) {
    const auto sum = torch::full({1}, here);
    group_.all_reduce(sum);
    total_ += sum.item<float>();
  }

  ProcessGroup group_;
  float total_ = 0;
  bool was_last_ = false;
};

const testing::Scenario joined("ddp and a joinable", [] {
  const auto context = init();
  torch::nn::Sequential net(torch::nn::Linear(2, 1), torch::nn::BatchNorm1d(1));
  DistributedDataParallel ddp(net);
  Counter counter(context.group());
  for (int epoch = 0; epoch < 2; ++epoch) {
    if (epoch == 1) convert_sync_batchnorm(net);
    const Join join({ddp, counter});
    for (int i = 0; i < 2 + 3 * context.rank(); ++i) {
      ddp->forward(torch::ones({2, 2})).sum().backward();
      counter.count();
    }
  }
  EXPECT_EQ(counter.total(), 2 * (2 + 5 + 8));
  EXPECT_EQ(counter.was_last(), context.rank() == 2);
});

TEST(DdpJoin, AcceptsAUserDefinedJoinable) {
  testing::expect_all_passed(testing::run_ranks(joined, {.world_size = 3}));
}

const testing::Scenario joined_early("ddp joined before the first step of a static graph", [] {
  const auto context = init({.timeout = std::chrono::seconds(20)});
  torch::nn::Linear net(2, 1);
  DistributedDataParallel ddp(net, {.static_graph = true});
  const auto train = [&] {
    const auto join = ddp->join();
    for (int i = 0; i < 2 * context.rank(); ++i) ddp->forward(torch::ones({1, 2})).sum().backward();
  };
  if (context.rank() == 0) {
    EXPECT_THAT(train, ThrowsMessage<Error>(HasSubstr("at least one batch")));
  } else {
    EXPECT_THAT(train, ThrowsMessage<DesyncError>(HasSubstr("first step of a static graph")));
  }
});

TEST(DdpJoin, ARankWithoutBatchesOfAStaticGraphThrows) {
  testing::expect_all_passed(testing::run_ranks(joined_early));
}

// The number of calls due to announcements in a join with so many batches.
std::int64_t announcements(const Context& context, int batches) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), SyncBatchNorm(3));
  DistributedDataParallel ddp(net);
  {
    const auto join = ddp->join();
    for (int i = 0; i < batches; ++i) ddp->forward(at::randn({4, 2})).sum().backward();
  }
  const auto calls = context.group().recent_calls();
  return std::ranges::count_if(calls, [](const CallRecord& call) {
    return call.contents == "announcement of a call, in Join" ||
           call.contents == "zeros of a rank without data, in Join";
  });
}

const testing::Scenario join_refusals("joined batch norm: refusals", [] {
  // Longer than the watchdog of run_ranks(): a rank that hangs fails its test.
  const auto context = init({.backend = "gloo", .timeout = std::chrono::seconds(300)});
  // Of one iteration: statistics, sums of gradients, a bucket, the end of reductions, the end. Rank 0 also
  // makes the first two.
  EXPECT_EQ(announcements(context, 2), 0);
  EXPECT_EQ(announcements(context, 2 + context.rank()), context.rank() == 0 ? 7 : 5);

  const auto own_group = context.new_group({0, 1});
  torch::nn::Sequential other(torch::nn::Linear(2, 3), SyncBatchNorm(3, own_group));
  DistributedDataParallel in_other(other);
  EXPECT_THAT([&] { const auto join = in_other->join(); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("module.1"), HasSubstr("process group"))));

  torch::nn::Sequential net(torch::nn::Linear(2, 3), SyncBatchNorm(3));
  DistributedDataParallel fixed(net, {.static_graph = true});
  EXPECT_THAT(
      [&] {
        const auto join = fixed->join();
        for (int i = 0; i < 2 * context.rank(); ++i) fixed->forward(at::randn({4, 2})).sum().backward();
      },
      ThrowsMessage<DesyncError>(
          AllOf(HasSubstr("static graph"), HasSubstr(context.rank() == 0 ? "this rank" : "another rank"))));
});

TEST(JoinedBatchNorm, IsRefusedOnAllRanksAndCostsNothingInEvenJoins) {
  testing::expect_all_passed(testing::run_ranks(join_refusals));
}

}  // namespace
}  // namespace lockstep
