// SPDX-License-Identifier: BSD-3-Clause
// Unmodified nets under fully_shard() beside DistributedDataParallel: the same losses and gradients, to the
// bit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/activation_checkpoint.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/models/language.h>
#include <lockstep/models/vision.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;

// Every child with parameters is a group of its own, and what is left is another.
FSDPModule shard_children(torch::nn::Module& net, bool shared) {
  const FullyShardOptions options{.reshard_after_forward = true, .share_memory = shared};
  for (const auto& child : net.children()) {
    if (!child->parameters().empty()) fully_shard(*child, options);
  }
  return fully_shard(net, options);
}

template <class Make, class Loss>
void compare(const Context& context, const char* name, const Make& make, const Loss& loss) {
  for (const bool shared : {true, false}) {
    SCOPED_TRACE(fmt::format("{}, {}", name, shared ? "shared" : "gathered"));
    torch::manual_seed(1);
    auto plain = make();
    torch::manual_seed(1);
    auto net = make();
    DistributedDataParallel<decltype(plain)> ddp(plain, {.broadcast_buffers = false});
    const auto sharded = shard_children(*net, shared);
    torch::optim::SGD reference(plain->parameters(), 0.01), optimizer(sharded.parameters(), 0.01);
    for (int step = 0; step < 2; ++step) {
      const auto seed = static_cast<std::uint64_t>(10 * step + context.rank());
      reference.zero_grad();
      optimizer.zero_grad();
      torch::manual_seed(seed);
      const Tensor expected = loss(*ddp);
      expected.backward();
      torch::manual_seed(seed);
      const Tensor ours = loss(*net);
      EXPECT_TRUE(ours.equal(expected));
      ours.backward();
      reference.step();
      optimizer.step();
    }
    const auto shards = sharded.named_parameters();
    const auto whole = plain->named_parameters();
    for (const auto& [parameter, rows] : shards) {
      const auto expected = whole[parameter].grad();
      const auto own = expected.chunk(context.world_size(), 0);
      const auto rank = static_cast<std::size_t>(context.rank());
      const auto part = rank < own.size() ? own[rank] : expected.narrow(0, 0, 0);
      EXPECT_TRUE(rows.grad().equal(part)) << parameter;
    }
  }
}

Tensor tokens() { return torch::randint(30, {2, 8}); }
Tensor images() { return torch::randn({4, 3, 64, 64}); }

struct RecomputedImpl : torch::nn::Module {
  RecomputedImpl() : first(8, 8), second(8, 8) {
    register_module("first", first);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) {
    return checkpoint([this](const Tensor& y) { return second(first(y).tanh()).tanh(); }, first(x));
  }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Recomputed);

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : gru(torch::nn::GRUOptions(5, 7).num_layers(2).bidirectional(true)), lstm(14, 6), head(6, 3) {
    register_module("gru", gru);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) { return head(std::get<0>(lstm(std::get<0>(gru(x))))); }
  torch::nn::GRU gru;
  torch::nn::LSTM lstm;
  torch::nn::Linear head;
};
TORCH_MODULE(Recurrent);

const Scenario all_nets("sharded nets", [] {
  const auto context = init({.backend = "shm"});
  using namespace models;
  const auto square = [](const auto& x) { return [x](auto& net) { return net.forward(x()).pow(2).mean(); }; };
  compare(
      context, "resnet18", [] { return resnet18({.num_classes = 7}); }, square(images));
  compare(
      context, "resnet18 with SyncBatchNorm",
      [] { return convert_sync_batchnorm(resnet18({.num_classes = 7})); }, square(images));
  compare(
      context, "mobilenet_v2", [] { return mobilenet_v2({.num_classes = 7}); }, square(images));
  compare(
      context, "vit",
      [] {
        return VisionTransformer(VisionTransformerOptions{.image_size = 64,
                                                          .patch_size = 16,
                                                          .num_layers = 2,
                                                          .num_heads = 2,
                                                          .hidden_dim = 24,
                                                          .mlp_dim = 32,
                                                          .num_classes = 5});
      },
      square(images));
  compare(
      context, "DGCNN", [] { return DGCNN(DGCNNOptions{.output_channels = 5, .k = 4, .emb_dims = 32}); },
      square([] {
        return torch::randn({2, 3, 16});
      }));
  compare(
      context, "PointNet", [] { return PointNet(PointNetOptions{.num_classes = 5}); },
      [](auto& net) {
        const auto [logits, transform] = net.forward(torch::randn({2, 3, 16}));
        return logits.pow(2).mean() + transform.pow(2).mean();
      });
  compare(
      context, "GPT-2, tied",
      [] {
        return GPT2(GPT2Options{.vocab_size = 30, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2});
      },
      square(tokens));
  compare(
      context, "Llama",
      [] {
        return Llama(LlamaOptions{.vocab_size = 30,
                                  .hidden_size = 16,
                                  .intermediate_size = 24,
                                  .num_hidden_layers = 2,
                                  .num_attention_heads = 2,
                                  .num_key_value_heads = 1});
      },
      square(tokens));
  compare(
      context, "GRU and LSTM", [] { return Recurrent(); }, square([] {
        return torch::randn({4, 2, 5});
      }));
  compare(
      context, "activation checkpointing", [] { return Recomputed(); }, square([] {
        return torch::randn({4, 8}).requires_grad_();
      }));
  compare(
      context, "Sequential",
      [] {
        return torch::nn::Sequential(torch::nn::Conv2d(3, 5, 3), torch::nn::BatchNorm2d(5), torch::nn::GELU(),
                                     torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 5, 3).groups(5)),
                                     torch::nn::GroupNorm(1, 5));
      },
      [](auto& net) { return net.forward(images()).pow(2).mean(); });
});
TEST(ShardedNets, HaveTheLossesAndGradientsOfDDP) { expect_all_passed(run_ranks(all_nets)); }

}  // namespace
}  // namespace lockstep::testing
