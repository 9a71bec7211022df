// SPDX-License-Identifier: BSD-3-Clause
// What fully_shard() refuses on one rank is an error on all.
#include <chrono>
#include <optional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/expect_told.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::expect_told;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const testing::Scenario sharding_refused_on_one("sharding refused on one rank", [] {
  const auto context = init();
  const bool odd = context.rank() == 1;
  torch::nn::Linear net(2, 2), mixed(2, 2);
  if (odd) mixed->register_parameter("extra", torch::ones({2}, at::kMeta));
  const auto expect_shard_told = [&](torch::nn::Linear& module, const FullyShardOptions& options,
                                     const char* reason) {
    expect_told(
        context, [&] { fully_shard(*module, options); }, reason);
  };
  expect_shard_told(mixed, {}, "parameter extra has another dtype or device");
  expect_shard_told(net, {.reshard_after_forward = odd ? 3 : 2}, "reshard_after_forward is 3");
  expect_shard_told(net, {.shard_placement_fn = [&](const at::Tensor&) -> std::optional<tensor::Placement> {
                      if (odd) throw std::out_of_range("no placement of it");
                      return std::nullopt;
                    }},
                    "no placement of it");
  expect_shard_told(net,
                    {.shard_placement_fn = [&](const at::Tensor& each) -> std::optional<tensor::Placement> {
                      if (odd) each.view({3});
                      return std::nullopt;
                    }},
                    "shape '[3]' is invalid");
  // Other options, and another module.
  EXPECT_THAT([&] { fully_shard(*net, {.mp_policy = {.param_dtype = odd ? at::kBFloat16 : at::kHalf}}); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("param_dtype=Half"), HasSubstr("BFloat16"))));
  EXPECT_THAT([&] { fully_shard(*net, {.reshard_after_forward = odd}); },
              ThrowsMessage<DesyncError>(HasSubstr("reshard_after_forward=false")));
  torch::nn::Linear other(odd ? 3 : 2, 2);
  EXPECT_THAT(
      [&] { fully_shard(*other); },
      ThrowsMessage<DesyncError>(AllOf(HasSubstr("rank 1 has parameter weight"), HasSubstr("[2, 3]"))));
  fully_shard(*net);  // what was refused has left no trace
});

TEST(ShardedAgreement, ARefusalOnOneRankIsAnErrorOnAll) {
  testing::expect_all_passed(
      testing::run_ranks(sharding_refused_on_one, {.timeout = std::chrono::seconds(30)}));
}

const testing::Scenario shared_over_gloo("shared memory refused on one rank", [] {
  const auto context = init({.backend = "gloo"});
  torch::nn::Linear net(2, 2);
  FullyShardOptions options;
  if (context.rank() == 1) options.share_memory = true;
  expect_told(
      context, [&] { fully_shard(*net, options); }, "share_memory needs");
  const auto mesh = init_device_mesh({1, 1, 2});
  EXPECT_THAT([&] { fully_shard(*net, {.mesh = mesh}); },
              ThrowsMessage<ArgumentError>(HasSubstr("a mesh of 3 dimensions")));
});

TEST(ShardedAgreement, ARefusalOfSharedMemoryIsAnErrorOnAll) {
  testing::expect_all_passed(testing::run_ranks(shared_over_gloo, {.timeout = std::chrono::seconds(30)}));
}

const testing::Scenario refused_in_a_mesh("sharding refused on one rank of a mesh", [] {
  const auto context = init();
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"replicate", "shard"}});
  torch::nn::Linear net(2, context.rank() == 1 ? 3 : 2);
  EXPECT_THROW(fully_shard(*net, {.mesh = mesh}), DesyncError);
  torch::nn::Linear alike(2, 2);
  const auto wrap = [&] {
    fully_shard(*alike, {.mesh = mesh, .reshard_after_forward = context.rank() == 1 ? 3 : 2});
  };
  if (context.rank() == 1) {
    EXPECT_THAT(wrap, ThrowsMessage<ArgumentError>(HasSubstr("reshard_after_forward is 3")));
  } else {
    EXPECT_THAT(wrap, ThrowsMessage<DesyncError>(HasSubstr("reshard_after_forward is 3")));
  }
});

TEST(ShardedAgreement, ADifferenceOnOneRankOfAMeshIsAnErrorOnAll) {
  testing::expect_all_passed(
      testing::run_ranks(refused_in_a_mesh, {.world_size = 4, .timeout = std::chrono::seconds(30)}));
}

}  // namespace
}  // namespace lockstep
