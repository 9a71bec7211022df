// SPDX-License-Identifier: BSD-3-Clause
// What fully_shard() makes of gradients: their divisor, and the replicas that they are reduced over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::sharded_reduction_test {
namespace {

using ::testing::HasSubstr;

const Scenario divided("fsdp_divided", [] {
  const auto context = init({.backend = "shm"});
  for (const auto dtype : {at::kFloat, at::kHalf, at::kDouble}) {
    torch::nn::Linear net(2, 1);
    net->to(dtype);
    auto sharded = fully_shard(*net);
    EXPECT_THAT(error_of<ArgumentError>([&] { sharded.set_gradient_divide_factor(0); }),
                HasSubstr("factor is 0"));
    for (const double factor : {1.0, 8.0, 3.0}) {
      sharded.set_gradient_divide_factor(factor);
      sharded.zero_grad();
      net->forward(torch::full({1, 2}, 3.0 * (context.rank() + 1), dtype)).sum().backward();
      for (const auto& parameter : sharded.parameters()) {
        if (parameter.dim() < 2 || parameter.numel() == 0) continue;
        EXPECT_TRUE(parameter.grad().allclose(torch::full({1, 2}, 9 / factor, dtype), 1e-3))
            << parameter.grad();
      }
    }
  }
});
TEST(FullyShardReduction, HasTheDivisorThatIsSet) { expect_all_passed(run_ranks(divided)); }

// Two backward passes over the shards, of which the second is over the replicas, too.
const Scenario kept_from_replicas("fsdp_kept_from_replicas", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"replicate", "shard"}});
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  auto sharded = fully_shard(*net, {.mesh = mesh});
  sharded.set_gradient_divide_factor(2);
  const auto backward = [&](std::size_t layers, bool all) {
    sharded.set_requires_all_reduce(all);
    auto loss = at::zeros({});
    for (std::size_t i = 0; i < layers; ++i)
      loss = loss + net[i]->as<torch::nn::Linear>()->forward(torch::full({1, 2}, context.rank() + 1.0)).sum();
    loss.backward();
  };
  const auto gradient = [&] { return sharded.parameters()[0].grad(); };
  backward(2, false);
  EXPECT_FALSE(gradient().defined());
  backward(2, true);
  EXPECT_TRUE(gradient().equal(torch::full({1, 2}, 10.0))) << "1 + 2 + 3 + 4, twice, halved";
  backward(2, false);
  sharded.zero_grad();
  backward(2, true);
  EXPECT_TRUE(gradient().equal(torch::full({1, 2}, 5.0)));
  backward(1, false);
  EXPECT_THAT(error_of([&] { backward(2, true); }), HasSubstr("gradients of other parameters"));
});
TEST(FullyShardReduction, KeepsGradientsFromReplicas) {
  expect_all_passed(run_ranks(kept_from_replicas, {.world_size = 4}));
}

}  // namespace
}  // namespace lockstep::testing::sharded_reduction_test
