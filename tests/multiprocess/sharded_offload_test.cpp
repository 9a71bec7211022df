// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() of parameters on a device other than the CPU, with shards there and in memory of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/state_dict.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr auto kDevice = at::kMTIA;  // of two_devices.cpp

// Tensors of the device travel through memory of the host.
Context init_with_device() { return init({.backend = "gloo", .device = c10::Device(kDevice, 0)}); }

Sequential make_layers() {
  torch::manual_seed(5);
  return Sequential(Linear(6, 5), torch::nn::Tanh(), Linear(5, 7), torch::nn::Tanh(), Linear(7, 3));
}

FSDPModule shard_layers(const Sequential& net, const FullyShardOptions& options) {
  for (const auto& layer : *net)
    if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), options);
  return fully_shard(net.ptr(), options);
}

void expect_on(c10::DeviceType type, const FSDPModule& module, torch::optim::AdamW& optimizer) {
  for (const auto& parameter : module.parameters()) {
    EXPECT_EQ(parameter.device().type(), type);
    EXPECT_EQ(parameter.grad().device().type(), type);
    const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
    EXPECT_EQ(static_cast<const torch::optim::AdamWParamState&>(state).exp_avg().device().type(), type);
  }
}

// Beside the same module on the CPU.
void compare(const Context& context, const FullyShardOptions& options, c10::DeviceType place) {
  auto plain = make_layers(), net = make_layers();
  net->to(kDevice);
  const auto expected = shard_layers(plain, {.reshard_after_forward = true, .share_memory = false});
  const auto sharded = shard_layers(net, options);
  torch::optim::AdamW reference(expected.parameters(), 1e-2), optimizer(sharded.parameters(), 1e-2);
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    const auto x = torch::full({2, 6}, 0.1 * (1 + step) + context.rank());
    reference.zero_grad();
    optimizer.zero_grad();
    const Tensor loss = net->forward(x.to(kDevice)).pow(2).mean();
    const Tensor wanted = plain->forward(x).pow(2).mean();
    EXPECT_EQ(loss.device().type(), kDevice);
    EXPECT_TRUE(loss.cpu().equal(wanted));
    loss.backward();
    wanted.backward();
    EXPECT_EQ(clip_grad_norm_(sharded, 0.5), clip_grad_norm_(expected, 0.5));
    reference.step();
    optimizer.step();
    expect_on(place, sharded, optimizer);
  }
  const auto ours = sharded.parameters(), theirs = expected.parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].cpu().equal(theirs[i])) << i;
}

const Scenario offloaded("fsdp offloaded", [] {
  const auto context = init_with_device();
  compare(context, {.reshard_after_forward = true}, kDevice);
  for (const bool pins : {true, false}) {
    const CPUOffloadPolicy policy{.pin_memory = pins};
    compare(context, {.reshard_after_forward = true, .offload_policy = policy}, at::kCPU);
    compare(context, {.reshard_after_forward = false, .offload_policy = policy}, at::kCPU);
    auto net = make_layers();
    net->to(kDevice);
    const auto sharded = shard_layers(net, {.offload_policy = policy});
    for (const auto& parameter : sharded.parameters()) EXPECT_EQ(parameter.is_pinned(), pins);
  }
});
TEST(ShardedOffload, HasTheBitsOfTheCpu) { expect_all_passed(run_ranks(offloaded)); }

const Scenario offloaded_parts("fsdp offloaded parts", [] {
  const auto context = init_with_device();
  compare(context, {.reshard_after_forward = 2, .offload_policy = CPUOffloadPolicy{}}, at::kCPU);
});
TEST(ShardedOffload, GathersAmongSomeRanksInBackward) {
  expect_all_passed(run_ranks(offloaded_parts, {.world_size = 4}));
}

const Scenario without_effect("fsdp offload on the CPU", [] {
  const auto context = init({.backend = "gloo"});
  const auto sharded = shard_layers(make_layers(), {.offload_policy = CPUOffloadPolicy{}});
  for (const auto& parameter : sharded.parameters()) EXPECT_FALSE(parameter.is_pinned());
});
TEST(ShardedOffload, HasNoEffectOnTheCpu) { expect_all_passed(run_ranks(without_effect)); }

}  // namespace
}  // namespace lockstep::testing
