// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() along dimensions other than 0, and its check that the ranks have the same module.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/device/device.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/error_of.h"

namespace lockstep::testing::sharded_placement_test {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A convolution's weight of three dimensions, and matrices.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    torch::manual_seed(8);
    conv = register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 8)));
    linear = register_module("linear", torch::nn::Linear(12, 5));
  }
  Tensor forward(const Tensor& x) { return linear(conv(x).tanh().flatten(1)).pow(2).mean(); }

  torch::nn::Conv1d conv{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(MixedNet);

// Weights along their last dimension.
std::optional<tensor::Placement> last_dimension(const Tensor& parameter) {
  return parameter.dim() == 1 ? std::nullopt : std::optional(tensor::Shard(-1));
}

Tensor part_of(const Tensor& whole, const Context& context) {
  const auto parts = whole.detach().chunk(context.world_size(), whole.dim() == 1 ? 0 : -1);
  const auto rank = static_cast<std::size_t>(context.rank());
  return rank < parts.size() ? parts[rank] : whole.detach().narrow(0, 0, 0);
}

Tensor noise_of(int step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(10 * step + rank));
  return torch::randn({3, 4, 9});
}

FSDPModule shard(const MixedNet& net, const FullyShardOptions& options) {
  fully_shard(net->conv.ptr(), options);
  return fully_shard(net.ptr(), options);
}

void expect_same(const FSDPModule& ours, const MixedNet& net, const MixedNet& expected,
                 const Context& context) {
  const auto whole = expected->named_parameters(), own = net->named_parameters();
  for (const auto& [name, shard] : ours.named_parameters()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(shard.is_contiguous());
    EXPECT_TRUE(shard.detach().equal(part_of(whole[name], context)));
    EXPECT_TRUE(shard.grad().equal(part_of(whole[name].grad(), context)));
    EXPECT_TRUE(own[name].detach().equal(whole[name].detach()));
  }
  const auto full = get_model_state_dict(ours, {.full_state_dict = true});
  for (const auto& item : whole) EXPECT_TRUE(full.at(item.key()).as_tensor().equal(item.value().detach()));
}

void compare_with_ddp(const Context& context, FullyShardOptions options) {
  options.shard_placement_fn = last_dimension;
  MixedNet plain, net;
  DistributedDataParallel<MixedNet> ddp(plain);
  const auto sharded = shard(net, options);
  torch::optim::AdamW reference(plain->parameters(), 1e-2), optimizer(sharded.parameters(), 1e-2);
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    const auto x = noise_of(step, context.rank());
    reference.zero_grad();
    optimizer.zero_grad();
    const auto expected = ddp->forward(x), loss = net->forward(x);
    EXPECT_TRUE(loss.equal(expected));
    expected.backward();
    loss.backward();
    const auto norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
    EXPECT_NEAR(clip_grad_norm_(sharded, 1e9), norm, 1e-6 * norm);
    reference.step();
    optimizer.step();
    expect_same(sharded, net, plain, context);
  }
}

const Scenario placed_columns("fsdp columns", [] {
  const auto context = init({.backend = "shm"});
  compare_with_ddp(context, {.share_memory = true});
  compare_with_ddp(context, {.reshard_after_forward = true, .share_memory = false});
  if (context.world_size() == 4)
    compare_with_ddp(context, {.reshard_after_forward = 2, .share_memory = false});
});
TEST(ShardPlacement, HasTheBitsOfDDP) {
  for (const int ranks : {1, 2, 4}) expect_all_passed(run_ranks(placed_columns, {.world_size = ranks}));
  expect_all_passed(run_ranks(placed_columns, {.rank_env = numa_nodes({0, 1})}));
}

const Scenario meta_columns("fsdp meta columns", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    MixedNet expected;
    std::optional<DeviceContext> meta(at::kMeta);
    MixedNet net;
    meta.reset();
    const auto sharded = shard(net, {.shard_placement_fn = last_dimension, .share_memory = shared});
    to_empty(*net, {.param_init_fn = [&](torch::nn::Module& module) {
      const torch::NoGradGuard no_grad;
      const auto& from = module.as<torch::nn::Conv1d>() != nullptr
                             ? static_cast<const torch::nn::Module&>(*expected->conv)
                             : *expected->linear;
      for (const auto& item : module.named_parameters(false))
        item.value().copy_(from.named_parameters()[item.key()]);
    }});
    const auto whole = expected->named_parameters();
    for (const auto& [name, shard] : sharded.named_parameters())
      EXPECT_TRUE(shard.detach().equal(part_of(whole[name], context))) << name;
    EXPECT_TRUE(net->forward(noise_of(0, 0)).equal(expected->forward(noise_of(0, 0))));
  }
});
TEST(ShardPlacement, GivesMemoryToPartsOfParametersOnMeta) { expect_all_passed(run_ranks(meta_columns)); }

const Scenario wrong_placements("fsdp wrong placements", [] {
  const auto context = init({.backend = "shm"});
  const auto error = [](tensor::Placement placement) {
    return error_of<ArgumentError>([&] {
      fully_shard(*torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)),
                  {.shard_placement_fn = [&](const Tensor&) { return placement; }});
    });
  };
  EXPECT_THAT(error(tensor::Shard(1)),
              AllOf(HasSubstr("sharded_placement_test.cpp:"), HasSubstr("parameter weight"),
                    HasSubstr("3 elements in dimension 1"), HasSubstr("of the 2 ranks")));
  EXPECT_THAT(error(tensor::Shard(2)), AllOf(HasSubstr("2 dimensions"), HasSubstr("returns Shard(2)")));
  EXPECT_THAT(error(tensor::Shard(-3)), HasSubstr("returns Shard(-3)"));
  EXPECT_THAT(error(tensor::Replicate()), HasSubstr("that is not Shard()"));
});
TEST(ShardPlacement, RefusesUnevenPartsAndOtherPlacements) { expect_all_passed(run_ranks(wrong_placements)); }

// Each rank sees that and where the ranks differ, before any data moves.
const Scenario other_modules("fsdp other modules", [] {
  const auto context = init({.backend = "shm"});
  const bool is_odd = context.rank() == 1;
  const auto where = AllOf(HasSubstr(fmt::format("rank {} of 2", context.rank())),
                           HasSubstr("sharded_placement_test.cpp:"), HasSubstr("the ranks' modules differ"));
  const auto error = [](torch::nn::Linear net, const FullyShardOptions& options) {
    return error_of<DesyncError>([&] { fully_shard(*torch::nn::Sequential(net), options); });
  };
  EXPECT_THAT(error(torch::nn::Linear(4, is_odd ? 6 : 5), {}),
              AllOf(where, HasSubstr("rank 0 has parameter 0.weight Float[5, 4]"),
                    HasSubstr("rank 1 has parameter 0.weight Float[6, 4]")));
  EXPECT_THAT(error(torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(!is_odd)), {}),
              AllOf(where, HasSubstr("rank 0 has parameter 0.bias Float[4]")));
  EXPECT_THAT(error(torch::nn::Linear(4, 4), {.share_memory = is_odd}),
              AllOf(where, HasSubstr("share_memory=false"), HasSubstr("share_memory=true")));
  FullyShardOptions options;
  if (is_odd) options.shard_placement_fn = last_dimension;
  EXPECT_THAT(error(torch::nn::Linear(4, 4), options),
              AllOf(where, HasSubstr("Shard(0)"), HasSubstr("Shard(1)")));
  EXPECT_EQ(error(torch::nn::Linear(4, 4), {}), "");
});
TEST(ShardedModules, AreComparedBetweenRanks) { expect_all_passed(run_ranks(other_modules)); }

}  // namespace
}  // namespace lockstep::testing::sharded_placement_test
