// SPDX-License-Identifier: BSD-3-Clause
// Communication hooks.
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

TEST(CommHook, SeesBucketsInOrderAndItsResultBecomesTheGradients) {
  const testing::FakeGroup fake(2);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  DistributedDataParallel ddp(net, {.process_group = fake.group, .bucket_cap_mb = 0.00003});
  std::vector<std::string> seen;
  ddp->register_comm_hook([&](GradBucket& bucket) {
    for (const auto& parameter : bucket.parameters()) seen.push_back(parameter.name);
    EXPECT_EQ(bucket.gradients().size(), bucket.parameters().size());
    EXPECT_EQ(bucket.gradients().front().sizes(), bucket.parameters().front().tensor.sizes());
    if (bucket.is_last()) seen.emplace_back("last");
    return BucketWork(torch::full_like(bucket.buffer(), 7).to(torch::kDouble));
  });
  for (int step = 0; step < 2; ++step) {
    seen.clear();
    ddp->forward(torch::ones({1, 4})).sum().backward();
    EXPECT_TRUE(torch::equal(net->parameters().front().grad(), torch::full({4, 4}, 7.0F)));
  }
  EXPECT_THAT(seen, ElementsAre("1.bias", "1.weight", "0.bias", "0.weight", "last"));
  EXPECT_EQ(fake.all_reduces(), 0);
}

TEST(CommHook, RunsInAGroupOfOneToo) {
  const testing::FakeGroup fake(1);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  ddp->register_comm_hook(nullptr, algorithms::ddp_comm_hooks::default_hooks::bf16_compress_hook);
  ddp->forward(torch::full({1, 4}, 1.001)).sum().backward();
  EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 1);
}

TEST(CommHook, IsRegisteredOnceAndBeforeTheFirstForward) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  EXPECT_THAT([&] { ddp->register_comm_hook({}); }, ThrowsMessage<ArgumentError>(HasSubstr("empty")));
  ddp->register_comm_hook(allreduce_hook);
  EXPECT_THAT([&] { ddp->register_comm_hook(allreduce_hook); },
              ThrowsMessage<ArgumentError>(HasSubstr("registered already")));
  DistributedDataParallel late(net, {.process_group = fake.group});
  late->forward(torch::ones({1, 4}));
  EXPECT_THAT([&] { late->register_comm_hook(allreduce_hook); },
              ThrowsMessage<ArgumentError>(HasSubstr("before the first forward")));
}

TEST(CommHook, AResultOfADifferentSizeIsAnError) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  ddp->register_comm_hook([](GradBucket&) { return BucketWork(torch::ones({3})); });
  EXPECT_THAT(
      [&] {
        ddp->forward(torch::ones({1, 4})).sum().backward();
      },
      ThrowsMessage<Error>(HasSubstr("3 elements for a bucket of 5")));
}

TEST(CommHook, TakesAState) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto calls = std::make_shared<int>(0);
  ddp->register_comm_hook(calls, [](const std::shared_ptr<int>& count, GradBucket& bucket) {
    ++*count;
    return allreduce_hook(bucket);
  });
  ddp->forward(torch::ones({1, 4})).sum().backward();
  EXPECT_EQ(*calls, 1);
}

struct CountingState {
  int calls = 0;
  BucketWork reduce(GradBucket& bucket) {
    ++calls;
    return allreduce_hook(bucket);
  }
};

BucketWork counting_hook(CountingState& state, GradBucket& bucket) { return state.reduce(bucket); }

template <typename State>
concept Registers = requires(DistributedDataParallelModule& ddp, State&& state) {
  ddp.register_comm_hook(std::forward<State>(state), counting_hook);
};
static_assert(!Registers<CountingState&>, "a hook would change a copy");
static_assert(Registers<CountingState> && Registers<CountingState*> && Registers<CountingState* const&>);
static_assert(Registers<const std::shared_ptr<CountingState>&> && !Registers<const CountingState*>);
static_assert(Registers<std::reference_wrapper<CountingState>&>);

TEST(CommHook, ChangesTheCallersState) {
  const testing::FakeGroup fake(2);
  CountingState state;
  const auto shared = std::make_shared<CountingState>();
  const auto run = [&](const auto&... arguments) {
    DistributedDataParallel ddp(torch::nn::Linear(4, 1), {.process_group = fake.group});
    ddp->register_comm_hook(arguments...);
    ddp->forward(torch::ones({1, 4})).sum().backward();
  };
  run(&state, counting_hook);
  run(&state, &CountingState::reduce);
  run(std::ref(state), counting_hook);
  EXPECT_EQ(state.calls, 3);
  run(shared, counting_hook);
  run(shared,
      [](const std::shared_ptr<CountingState>& each, GradBucket& bucket) { return each->reduce(bucket); });
  EXPECT_EQ(shared->calls, 2);
}

TEST(CommHook, CopiesOfItsResultShareTheSteps) {
  const testing::FakeGroup fake(2);
  const auto sum = torch::ones({3});
  int steps = 0;
  BucketWork work(fake.group.all_reduce_async(sum), [&] {
    ++steps;
    return BucketWork(fake.group.all_reduce_async(sum), sum);
  });
  auto copy = work;
  auto twice = work.then([](const at::Tensor& result) { return result * 2; });
  EXPECT_TRUE(copy.wait().is_same(sum));
  EXPECT_TRUE(work.is_completed());
  EXPECT_TRUE(work.wait().is_same(sum));
  EXPECT_TRUE(twice.wait().equal(torch::full({3}, 2.F)));
  EXPECT_EQ(steps, 1);
  BucketWork limited(fake.group.all_reduce_async(sum), [&] { return BucketWork(sum + 1); });
  EXPECT_TRUE(limited.wait(20).equal(sum + 1));
}

TEST(CommHook, StepsOfAllBucketsRunRoundRobin) {
  const testing::FakeGroup fake(2);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  DistributedDataParallel ddp(net, {.process_group = fake.group, .bucket_cap_mb = 0.00003});
  std::vector<std::string> order;
  ddp->register_comm_hook([&](GradBucket& bucket) {
    const auto name = std::to_string(bucket.index());
    auto work = fake.group.all_reduce_async(bucket.buffer());
    return BucketWork(std::move(work), [&order, &fake, name, buffer = bucket.buffer()] {
      order.push_back(name + "a");
      return BucketWork(fake.group.all_reduce_async(buffer), [&order, name, buffer] {
        order.push_back(name + "b");
        return BucketWork(buffer);
      });
    });
  });
  for (int step = 0; step < 2; ++step) {
    order.clear();
    ddp->forward(torch::ones({1, 4})).sum().backward();
  }
  EXPECT_THAT(order, ElementsAre("0a", "1a", "0b", "1b"));
}

TEST(PowerSGD, RejectsTheOptionsThatPyTorchRejectsAndCounts) {
  EXPECT_THAT([] { PowerSGD({.start_powerSGD_iter = 1}); },
              ThrowsMessage<ArgumentError>(HasSubstr("above 1")));
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(64, 64);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const PowerSGD hook({.start_powerSGD_iter = 2, .orthogonalization_epsilon = 1e-8});
  ddp->register_comm_hook(hook);
  for (int step = 0; step < 3; ++step) ddp->forward(torch::randn({3, 64})).sum().backward();
  EXPECT_EQ(hook.compression_stats().numel_before, 64 * 64 + 64);
  EXPECT_EQ(hook.compression_stats().numel_after, 128 + 64);
}

}  // namespace
}  // namespace lockstep
