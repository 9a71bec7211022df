// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() in unusual hands: modules that are cast, saved, unfrozen, sharded twice or used in pairs.
#include <optional>
#include <sstream>
#include <type_traits>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/rendezvous/init.h>

#include "intercept/storage_guard.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::sharded_misuse_test {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Linear;
using torch::nn::Sequential;

Sequential three_layers() {
  torch::manual_seed(3);
  return Sequential(Linear(4, 6), torch::nn::Tanh(), Linear(6, 6), torch::nn::Tanh(), Linear(6, 3));
}

FSDPModule shard_layers(Sequential net, bool shared) {
  const FullyShardOptions options{.reshard_after_forward = true, .share_memory = shared};
  for (const auto& layer : *net) {
    if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), options);
  }
  return fully_shard(*net, options);
}

Tensor input_of(int step, int rank) { return torch::full({2, 4}, 0.1 * (1 + step) + rank); }

Tensor rows_of_rank(const Tensor& whole, const Context& context) {
  const auto parts = whole.detach().chunk(context.world_size());
  const auto rank = static_cast<std::size_t>(context.rank());
  return rank < parts.size() ? parts[rank] : whole.detach().narrow(0, 0, 0);
}

const Scenario cast_module("fsdp cast module", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    auto net = three_layers();
    const auto sharded = shard_layers(net, shared);
    const auto step = [&] { net->forward(input_of(0, context.rank()).to(at::kDouble)).sum().backward(); };
    net->to(at::kDouble);
    EXPECT_THAT(error_of([&] { step(); }),
                AllOf(HasSubstr("weight: its data was replaced"), HasSubstr("before fully_shard()")));
    EXPECT_THAT(error_of([&] { sharded.reshard(); }), "") << shared;
  }
});
TEST(ShardedMisuse, AnErrorSaysThatAModuleWasCast) { expect_all_passed(run_ranks(cast_module)); }

const Scenario saved_module("fsdp saved module", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    auto net = three_layers();
    const auto expected = net[0]->parameters()[0].clone();
    const auto sharded = shard_layers(net, shared);
    std::stringstream archive;
    const auto error = error_of<std::exception>([&] { torch::save(net, archive); });
    if (!shared) {
      EXPECT_THAT(error, AllOf(HasSubstr("parameter weight of"), HasSubstr("get_model_state_dict()")));
      continue;
    }
    auto loaded = three_layers();
    loaded->zero_grad();
    {
      const torch::NoGradGuard no_grad;
      loaded[0]->parameters()[0].zero_();
    }
    torch::load(loaded, archive);
    EXPECT_TRUE(loaded[0]->parameters()[0].equal(expected)) << shared;
  }
});
TEST(ShardedMisuse, TorchSaveWritesWholeParametersOrFails) { expect_all_passed(run_ranks(saved_module)); }

// A base of frozen layers, as with adapters.
const Scenario frozen_groups("fsdp frozen groups", [] {
  const auto context = init({.backend = "shm"});
  auto net = three_layers();
  for (const auto& parameter : net[4]->parameters()) parameter.set_requires_grad(false);
  shard_layers(net, false);
  for (int step = 0; step < 3; ++step) {
    std::size_t frozen_bytes = 99;
    net[0]->parameters()[0].register_hook(
        [&](const Tensor&) { frozen_bytes = net[4]->parameters()[0].storage().nbytes(); });
    net->forward(input_of(step, context.rank())).pow(2).sum().backward();
    EXPECT_EQ(frozen_bytes, 0) << step;
  }
});
TEST(ShardedMemory, FrozenGroupsAreFreedInBackward) { expect_all_passed(run_ranks(frozen_groups)); }

const Scenario unfrozen("fsdp unfrozen", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    auto plain = three_layers(), net = three_layers();
    const auto freeze = [](Sequential each, bool trained) {
      for (const auto& parameter : each[2]->parameters()) parameter.set_requires_grad(trained);
    };
    freeze(plain, false);
    freeze(net, false);
    DistributedDataParallel<Sequential> frozen(plain);
    const auto sharded = shard_layers(net, shared);
    torch::optim::SGD reference(plain->parameters(), 0.1), optimizer(sharded.parameters(), 0.1);
    std::optional<DistributedDataParallel<Sequential>> ddp;
    for (int step = 0; step < 5; ++step) {
      if (step == 1) {
        freeze(plain, true);
        freeze(net, true);
        ddp.emplace(plain);
      }
      if (step == 3) freeze(net, false);
      const auto x = input_of(step, context.rank());
      reference.zero_grad();
      optimizer.zero_grad();
      (ddp ? (*ddp)->forward(x) : frozen->forward(x)).pow(2).sum().backward();
      net->forward(x).pow(2).sum().backward();
      if (step >= 3) {
        plain[2]->zero_grad();
        EXPECT_FALSE(sharded.parameters()[2].grad().defined());
      }
      reference.step();
      optimizer.step();
      const auto whole = plain->parameters();
      const auto shards = sharded.parameters();
      for (std::size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(shards[i].detach().equal(rows_of_rank(whole[i], context))) << shared << step << i;
    }
  }
});
TEST(ShardedParameters, CanBeFrozenAndUnfrozen) { expect_all_passed(run_ranks(unfrozen)); }

// An encoder and a decoder, sharded apart, in one backward; the decoder also alone.
const Scenario pairs("fsdp pairs", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    auto plain_encoder = three_layers(), encoder = three_layers();
    const auto make_decoder = [] {
      torch::manual_seed(4);
      return Sequential(Linear(3, 5), torch::nn::Tanh(), Linear(5, 4));
    };
    auto plain_decoder = make_decoder(), decoder = make_decoder();
    DistributedDataParallel<Sequential> ddp_encoder(plain_encoder), ddp_decoder(plain_decoder);
    const auto first = shard_layers(encoder, shared), second = shard_layers(decoder, shared);
    torch::optim::SGD reference_first(plain_encoder->parameters(), 0.1),
        optimizer_first(first.parameters(), 0.1);
    torch::optim::SGD reference_second(plain_decoder->parameters(), 0.1),
        optimizer_second(second.parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      const auto x = input_of(step, context.rank());
      for (auto* each : {&reference_first, &reference_second, &optimizer_first, &optimizer_second})
        each->zero_grad();
      const bool both = step != 2;
      const auto code = [&](auto& net) { return both ? net->forward(x) : x.slice(1, 0, 3); };
      ddp_decoder->forward(code(ddp_encoder)).pow(2).sum().backward();
      decoder->forward(code(encoder)).pow(2).sum().backward();
      for (auto* each : {&reference_second, &optimizer_second}) each->step();
      if (both) {
        reference_first.step();
        optimizer_first.step();
      }
      const auto whole = plain_encoder->parameters();
      const auto shards = first.parameters();
      for (std::size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(shards[i].detach().equal(rows_of_rank(whole[i], context))) << shared << step << i;
    }
  }
});
TEST(ShardedPairs, TrainInOneBackward) { expect_all_passed(run_ranks(pairs)); }

enum class Zeroes { optimizer, module, wrapper };

// The gradient after a pass without reduction, zero_grad(), and a pass with reduction, each of which adds 1.
template <class Wrapped>
float zeroed_in_between(Linear net, Wrapped& wrapped, Zeroes which, bool set_to_none, bool reduced_before) {
  constexpr bool kShards = std::is_same_v<Wrapped, FSDPModule>;
  const auto x = torch::ones({1, 2});
  std::vector<Tensor> parameters;
  if constexpr (kShards) {
    parameters = wrapped.parameters();
  } else {
    parameters = net->parameters();
  }
  torch::optim::SGD optimizer(parameters, 0.1);
  const auto backward = [&](bool reduces) {
    if constexpr (kShards) {
      wrapped.set_requires_gradient_sync(reduces);
      net->forward(x).sum().backward();
    } else {
      const auto guard = reduces ? std::nullopt : std::optional(wrapped->no_sync());
      wrapped->forward(x).sum().backward();
    }
  };
  if (reduced_before) backward(true);
  backward(false);
  if (which == Zeroes::optimizer) optimizer.zero_grad(set_to_none);
  if (which == Zeroes::module) net->zero_grad(set_to_none);
  if constexpr (kShards) {
    if (which == Zeroes::wrapper) wrapped.zero_grad();
  }
  backward(true);
  return parameters[0].grad().flatten()[0].template item<float>();
}

// As in PyTorch 2.15, optimizers do not know what fully_shard() has not reduced. Unlike there, the module's
// gradients are that.
const Scenario zeroed("gradients zeroed between passes", [] {
  const auto context = init({.backend = "shm"});
  const auto make = [] { return Linear(torch::nn::LinearOptions(2, 2).bias(false)); };
  for (const bool none : {true, false}) {
    for (const bool before : {true, false}) {
      SCOPED_TRACE(fmt::format("set_to_none={} reduced before={}", none, before));
      for (const bool view : {true, false}) {
        for (const auto which : {Zeroes::optimizer, Zeroes::module}) {
          auto net = make();
          DistributedDataParallel<Linear> ddp(net, {.gradient_as_bucket_view = view});
          EXPECT_EQ(zeroed_in_between(net, ddp, which, none, before), 1);
        }
      }
      for (const bool shares : {true, false}) {
        for (const auto which : {Zeroes::optimizer, Zeroes::module, Zeroes::wrapper}) {
          if (which == Zeroes::module && before && !none) continue;  // zeroes one of two gradients
          auto net = make();
          auto sharded = fully_shard(*net, {.reshard_after_forward = true, .share_memory = shares});
          EXPECT_EQ(zeroed_in_between(net, sharded, which, none, before), which == Zeroes::optimizer ? 2 : 1)
              << static_cast<int>(which);
        }
      }
    }
  }
});
TEST(ShardedMisuse, GradientsAreZeroedBetweenPasses) { expect_all_passed(run_ranks(zeroed)); }

// The children are watched as before.
const Scenario refused_around_children("fsdp refused around sharded children", [] {
  const auto context = init({.backend = "shm"});
  auto net = three_layers();
  const auto child = fully_shard(*net[0]);
  const MixedPrecisionPolicy policy{.cast_forward_inputs = context.rank() == 0};
  EXPECT_THAT(error_of<DesyncError>([&] { fully_shard(*net, {.mp_policy = policy}); }),
              HasSubstr("cast_forward_inputs"));
  net[0]->as<Linear>()->weight = net[0]->register_parameter("another", torch::ones({3, 4}));
  EXPECT_THAT(error_of([&] { net[0]->as<Linear>()->forward(input_of(0, context.rank())); }),
              HasSubstr("parameter another has been added"));
});
TEST(ShardedMisuse, ARefusedCallLeavesShardedChildrenAsTheyWere) {
  expect_all_passed(run_ranks(refused_around_children));
}

// Lets the copy into this rank's rows of the last bias fail.
class NoLastBias final : public intercept::OperatorGuard {
 public:
  bool run(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    if (op.schema().name() != "aten::copy_") return false;
    const auto target = torch::jit::peek(stack, 0, 3).toTensor();
    if (target.is_floating_point() && target.dim() == 1 && target.numel() <= 2)
      throw Error("this bias is not there");
    return false;
  }
};

const Scenario failed_half_way("fsdp failed half way", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    for (const bool has_sharded_child : {true, false}) {
      auto net = three_layers();
      const FullyShardOptions options{.share_memory = shared};
      if (has_sharded_child) fully_shard(*net[0], options);
      {
        NoLastBias guard;
        const intercept::OperatorScope scope(guard);
        EXPECT_THAT(error_of([&] { fully_shard(*net, options); }), HasSubstr("this bias is not there"));
      }
      const auto says_why =
          AllOf(HasSubstr("sharded_misuse_test.cpp:"), HasSubstr("fully_shard() failed: this bias"));
      EXPECT_THAT(error_of([&] { net->forward(input_of(0, context.rank())); }), says_why);
      EXPECT_THAT(error_of([&] { fully_shard(*net, options); }), says_why) << shared << has_sharded_child;
    }
  }
});
TEST(ShardedMisuse, AnErrorSaysThatShardingFailed) { expect_all_passed(run_ranks(failed_half_way)); }

const Scenario called_twice("fsdp called twice", [] {
  const auto context = init({.backend = "shm"});
  auto net = three_layers();
  const auto sharded = shard_layers(net, true);
  EXPECT_TRUE(sharded.shares_memory());
  EXPECT_THAT(error_of([&] { fully_shard(*net[0]); }),
              AllOf(HasSubstr("sharded_misuse_test.cpp:"), HasSubstr("already sharded")));
  Linear nothing(3, 0);
  const auto empty = fully_shard(*nothing);
  EXPECT_EQ(nothing(torch::ones({2, 3})).numel(), 0);
});
TEST(ShardedMisuse, AnErrorSaysThatAModuleIsSharded) { expect_all_passed(run_ranks(called_twice)); }

struct Opaque {
  Tensor tensor;
};

struct OpaqueOutputImpl : torch::nn::Module {
  OpaqueOutputImpl() { layer = register_module("layer", Linear(4, 3)); }
  Opaque forward(const Tensor& x) { return {layer(x)}; }
  Linear layer{nullptr};
};
TORCH_MODULE(OpaqueOutput);

const Scenario converted("fsdp forward conversions", [] {
  const auto context = init({.backend = "shm"});
  const MixedPrecisionPolicy policy{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
  const auto x = input_of(0, context.rank());
  for (const bool of_children : {false, true}) {
    Sequential net(Linear(4, 3));
    if (of_children) fully_shard(*net[0]);
    const auto sharded = fully_shard(*net, {.mp_policy = policy});
    EXPECT_THAT(error_of([&] { net->forward(x.to(at::kBFloat16)); }),
                AllOf(HasSubstr("sharded_misuse_test.cpp:"), HasSubstr("call sharded.forward(net, ...)")));
    EXPECT_THAT(error_of([&] { sharded.forward(three_layers(), x); }), HasSubstr("another module"));
    if (of_children) continue;  // the child's policy is another
    EXPECT_EQ(sharded.forward(net, x).scalar_type(), at::kFloat);
    EXPECT_EQ(FSDPModule::find(*net)->forward(net, x).scalar_type(), at::kFloat);
    EXPECT_EQ(net->forward(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  }
  Linear net(4, 3);
  const auto as_given =
      fully_shard(*net, {.mp_policy = {.param_dtype = at::kBFloat16, .cast_forward_inputs = false}});
  EXPECT_EQ(as_given.forward(net, x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  EXPECT_NE(error_of<std::exception>([&] { as_given.forward(net, x); }), "");
  OpaqueOutput opaque;
  const auto sharded = fully_shard(*opaque, {.mp_policy = policy});
  EXPECT_THAT(error_of([&] { sharded.forward(opaque, x); }),
              AllOf(HasSubstr("Opaque"), HasSubstr("visit_tensors")));
});
TEST(ShardedMisuse, AnErrorSaysThatForwardCannotConvert) { expect_all_passed(run_ranks(converted)); }

// Modules that live longer than the group, and a prefetch that nothing waits for.
const Scenario outliving("fsdp outliving", [] {
  Sequential shared = three_layers(), gathered = three_layers();
  std::optional<FSDPModule> one, other;
  {
    const auto context = init({.backend = "shm"});
    one = shard_layers(shared, true);
    other = shard_layers(gathered, false);
    for (int step = 0; step < 2; ++step) {
      shared->forward(input_of(step, context.rank())).sum().backward();
      gathered->forward(input_of(step, context.rank())).sum().backward();
    }
    (void)gathered[0]->as<Linear>()->forward(input_of(0, context.rank()));
    context.barrier();
  }
  gathered = nullptr;
  other.reset();
  shared = nullptr;
  one.reset();
});
TEST(ShardedModules, CanOutliveTheGroup) { expect_all_passed(run_ranks(outliving)); }

}  // namespace
}  // namespace lockstep::testing::sharded_misuse_test
