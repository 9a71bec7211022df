// SPDX-License-Identifier: BSD-3-Clause
// What fully_shard() gathers ahead, and what it keeps between forward and backward.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/memory_report.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The middle layer is in the learned order of backward, but not in that of a step with `detaches`.
struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl() {
    torch::manual_seed(2);
    for (const auto* name : {"a", "b", "c"}) layers.push_back(register_module(name, torch::nn::Linear(6, 6)));
  }
  Tensor forward(const Tensor& x, bool detaches) {
    auto hidden = layers[0](x).tanh();
    if (detaches) hidden = hidden.detach();
    return layers[2](layers[1](hidden).tanh()).pow(2).mean();
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(ThreeLayers);

const Scenario other_order("fsdp_other_order", [] {
  const auto context = init({.backend = "shm"});
  ThreeLayers plain, net;
  DistributedDataParallel<ThreeLayers> ddp(plain, {.find_unused_parameters = true});
  const FullyShardOptions options{.reshard_after_forward = true, .share_memory = false};
  for (const auto& layer : net->layers) fully_shard(layer.ptr(), options);
  const auto sharded = fully_shard(*net, options);
  torch::optim::SGD reference(plain->parameters(), 0.5), optimizer(sharded.parameters(), 0.5);
  for (int step = 0; step < 6; ++step) {
    const auto x = torch::full({2, 6}, 0.1 * (context.rank() + step));
    reference.zero_grad();
    optimizer.zero_grad();
    const auto expected = ddp->forward(x, step % 2 == 1);
    const auto loss = net->forward(x, step % 2 == 1);
    EXPECT_TRUE(loss.equal(expected)) << step;
    expected.backward();
    loss.backward();
    reference.step();
    optimizer.step();
  }
});
TEST(FullyShardPrefetch, IsDroppedWhenItIsNotNeeded) { expect_all_passed(run_ranks(other_order)); }

const Scenario asked_prefetch("fsdp_asked_prefetch", [] {
  const auto context = init({.backend = "shm"});
  ThreeLayers plain, net;
  DistributedDataParallel<ThreeLayers> ddp(plain);
  const FullyShardOptions options{.reshard_after_forward = true, .share_memory = false};
  std::vector<FSDPModule> layers;
  for (const auto& layer : net->layers) layers.push_back(fully_shard(layer.ptr(), options));
  EXPECT_THAT(error_of<ArgumentError>([&] { layers[0].set_modules_to_forward_prefetch({layers[1]}); }),
              AllOf(HasSubstr("sharded_prefetch_test.cpp:"), HasSubstr("call it after fully_shard()")));
  const auto sharded = fully_shard(*net, options);
  auto gathers = [&, seen = std::uint64_t{0}]() mutable {
    const auto calls = context.group().recent_calls();
    const auto is_new = [&](const CallRecord& each) {
      return each.number > seen && each.kind == CallKind::all_gather_into_tensor;
    };
    const auto count = std::ranges::count_if(calls, is_new);
    seen = calls.back().number;
    return count;
  };
  gathers();
  const auto x = torch::full({2, 6}, 0.1 * (context.rank() + 1));
  layers[0].set_modules_to_forward_prefetch({layers[1], layers[2]});
  layers[2].set_modules_to_backward_prefetch({layers[0]});
  (void)net->layers[0](x);
  EXPECT_EQ(gathers(), 3);
  layers[0].set_modules_to_forward_prefetch({});
  layers[2].reshard();
  const auto y = net->layers[2](x.clone().requires_grad_());
  layers[2].reshard();
  gathers();
  y.sum().backward();
  EXPECT_EQ(gathers(), 2);
  for (const auto& layer : layers) layer.reshard();
  auto handle = layers[1].unshard_async();
  EXPECT_EQ(gathers(), 1);
  handle.wait();
  handle.wait();
  (void)net->layers[1](x);
  EXPECT_EQ(gathers(), 0);
  torch::optim::SGD reference(plain->parameters(), 0.5), optimizer(sharded.parameters(), 0.5);
  for (int step = 0; step < 3; ++step) {
    reference.zero_grad();
    optimizer.zero_grad();
    const auto expected = ddp->forward(x, false), loss = net->forward(x, false);
    EXPECT_TRUE(loss.equal(expected)) << step;
    expected.backward();
    loss.backward();
    reference.step();
    optimizer.step();
  }
});
TEST(FullyShardPrefetch, IsThatOfTheCaller) { expect_all_passed(run_ranks(asked_prefetch)); }

// Of four ranks, two have a layer together between forward and backward.
const Scenario parts("fsdp_parts", [] {
  const auto context = init({.backend = "shm"});
  ThreeLayers net;
  const FullyShardOptions options{.reshard_after_forward = 2, .share_memory = false};
  for (const auto& layer : net->layers) fully_shard(layer.ptr(), options);
  auto sharded = fully_shard(*net, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.5);
  const auto gathered = [&] {
    const auto forward = [&] { return net->forward(torch::ones({2, 6}), false); };
    return memory_report(*net, optimizer, {.forward = forward}).rank.gathered;
  };
  constexpr std::int64_t kWhole = (36 + 6) * 4, kPart = 2 * (2 * 6 + 2) * 4;
  EXPECT_EQ(gathered(), kWhole + 2 * kPart);
  sharded.set_reshard_after_forward(false);
  EXPECT_EQ(gathered(), 3 * kWhole);
  EXPECT_THAT(error_of([&] { fully_shard(*torch::nn::Linear(3, 3), {.reshard_after_forward = 3}); }),
              AllOf(HasSubstr("reshard_after_forward is 3"), HasSubstr("divide the 4 ranks")));
});
TEST(FullyShardReshard, KeepsAPartForBackward) { expect_all_passed(run_ranks(parts, {.world_size = 4})); }

}  // namespace
}  // namespace lockstep::testing
