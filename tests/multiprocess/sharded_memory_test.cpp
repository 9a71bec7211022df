// SPDX-License-Identifier: BSD-3-Clause
// The memory of a process does not grow over the steps of a gathered module.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/optim/fused.h>
#include <lockstep/rendezvous/init.h>

#include "support/private_memory.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t kSide = 512, kLayerBytes = kSide * kSide * 4;

std::int64_t growth(const FullyShardOptions& options) {
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    const torch::nn::Linear layer(torch::nn::LinearOptions(kSide, kSide).bias(false));
    fully_shard(*layer, options);
    net->push_back(layer);
    net->push_back(torch::nn::Tanh());
  }
  optim::FusedAdamW optimizer(fully_shard(*net, options).parameters(), 1e-4);
  const auto x = torch::ones({4, kSide}).to(options.mp_policy.param_dtype.value_or(at::kFloat));
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      optimizer.zero_grad();
      net->forward(x).pow(2).mean().backward();
      optimizer.step();
    }
    return private_bytes();
  };
  const auto first = steps(5);
  return steps(30) - first;
}

const Scenario many_steps("fsdp many steps", [] {
  const auto context = init({.backend = "shm"});
  FullyShardOptions options{.reshard_after_forward = true, .share_memory = false};
  EXPECT_LT(growth(options), kLayerBytes);
  options.reshard_after_forward = 2;
  EXPECT_LT(growth(options), kLayerBytes);
  options.mp_policy.param_dtype = at::kBFloat16;
  EXPECT_LT(growth(options), kLayerBytes);
});
TEST(GatheredMemory, DoesNotGrowOverSteps) {
  // Without a reserve of the heap in which growth would not show.
  expect_all_passed(run_ranks(many_steps, {.world_size = 4, .env = {{"MALLOC_MMAP_THRESHOLD_", "65536"}}}));
}

}  // namespace
}  // namespace lockstep::testing
