// SPDX-License-Identifier: BSD-3-Clause
// Losses, layers, tied weights and dropout of which each rank has a part.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/error_of.h"
#include "support/parallel_net.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor::parallel;
namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::HasSubstr;

// With 5 classes on 4 ranks the last has none.
void compare_losses(const DeviceMesh& mesh) {
  torch::manual_seed(3);
  for (const int classes : {8, 7, 5}) {
    const auto logits = torch::randn({6, classes, 2}, torch::kDouble) * 3;
    const auto target = torch::randint(classes, {6, 2});
    target[0][0].fill_(3);
    const auto weight = torch::rand({classes}, torch::kDouble);
    const auto chunk = (classes + mesh.size() - 1) / mesh.size();
    const auto first = std::min<std::int64_t>(chunk * mesh.get_local_rank(), classes);
    const auto part = [&](const Tensor& whole) {
      return whole.slice(1, first, std::min<std::int64_t>(first + chunk, classes));
    };
    using Options = F::CrossEntropyFuncOptions;
    for (const auto& options :
         {Options(), Options().label_smoothing(0.1), Options().weight(weight).label_smoothing(0.2),
          Options().reduction(torch::kSum).ignore_index(3), Options().weight(weight).ignore_index(3),
          Options().reduction(torch::kNone).label_smoothing(0.3).ignore_index(3)}) {
      auto whole = logits.clone().requires_grad_(), own = part(logits).clone().requires_grad_();
      const auto expected = F::cross_entropy(whole, target, options);
      const auto loss = tp::loss_parallel(own, target, mesh, options);
      EXPECT_TRUE(loss.allclose(expected, 0, 1e-12)) << loss << expected;
      const auto factors = torch::arange(1, 1 + expected.numel()).view(expected.sizes());
      (expected * factors).sum().backward();
      (loss * factors).sum().backward();
      EXPECT_TRUE(own.grad().allclose(part(whole.grad()), 0, 1e-12));
    }
    const auto before = mesh.get_group().recent_calls().back().number;
    tp::loss_parallel(part(logits), target, mesh);
    EXPECT_EQ(mesh.get_group().recent_calls().back().number - before, 3) << "small all-reduces";
    EXPECT_THAT(error_of([&] { tp::loss_parallel(part(logits), target + classes, mesh); }),
                HasSubstr("class"));
    const auto short_weight = Options().weight(weight.slice(0, 1)).label_smoothing(0.1);
    EXPECT_THAT(
        error_of<ArgumentError>([&] { tp::loss_parallel(part(logits), target, mesh, short_weight); }),
        HasSubstr(fmt::format("weight has {} elements, but there are {} classes", classes - 1, classes)));
  }
}

// Layers for those who write their own, with features that the ranks cannot share equally.
void compare_layers(const DeviceMesh& mesh) {
  torch::manual_seed(5);
  torch::nn::Linear first(6, 5), second(5, 3);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(7, 6).padding_idx(5));
  torch::manual_seed(static_cast<std::uint64_t>(5 + mesh.get_local_rank()));  // rank 0's values count
  tp::ColumnParallelLinear column(torch::nn::LinearOptions(6, 5), mesh);
  tp::RowParallelLinear row(torch::nn::LinearOptions(5, 3), mesh);
  tp::VocabParallelEmbedding vocabulary(torch::nn::EmbeddingOptions(7, 6).padding_idx(5), mesh);
  const auto tokens = torch::tensor({0, 6, 3, 5, 3, 4});
  const auto expected = second(torch::tanh(first(table(tokens))));
  const auto output = row(torch::tanh(column(vocabulary(tokens))));
  EXPECT_TRUE(output.allclose(expected, 0, 1e-6));
  output.pow(2).sum().backward();
  expected.pow(2).sum().backward();
  const auto expect_part = [&](const Tensor& ours, const Tensor& whole) {
    EXPECT_TRUE(ours.grad().allclose(part_like(whole.grad(), ours, mesh), 0, 1e-6));
  };
  expect_part(column->weight, first->weight);
  expect_part(column->bias, first->bias);
  expect_part(row->weight, second->weight);
  expect_part(row->bias, second->bias);
  expect_part(vocabulary->weight, table->weight);
}

// A weight that is an embedding and the last layer.
void compare_tied(const DeviceMesh& mesh) {
  torch::manual_seed(6);
  ParallelNet expected, net;
  expected->head->weight = expected->emb->weight;
  net->head->weight = net->emb->weight;
  const torch::NoGradGuard no_gradients;
  net->emb->weight.copy_(expected->emb->weight);
  net->pos->weight.copy_(expected->pos->weight);
  for (const auto& item : expected->layers->named_parameters())
    net->layers->named_parameters()[item.key()].copy_(item.value());
  tp::parallelize_module(*net, mesh, tensor_plan());
  const torch::AutoGradMode gradients(true);
  const auto [tokens, target] = draw_tokens(0);
  F::cross_entropy(net->forward(tokens).flatten(0, 1), target).backward();
  F::cross_entropy(expected->forward(tokens).flatten(0, 1), target).backward();
  const auto gradient = net->emb->weight.grad();
  EXPECT_TRUE(gradient.allclose(part_like(expected->emb->weight.grad(), gradient, mesh), 0, 1e-6));
}

void check_dropout(const DeviceMesh& mesh) {
  torch::nn::Sequential net(torch::nn::Dropout(0.5), torch::nn::Dropout(0.5));
  torch::manual_seed(static_cast<std::uint64_t>(8 + mesh.get_rank()));
  tp::parallelize_module(*net, mesh, {{"0", tp::SequenceParallel()}});
  const auto other_rank = [&](const Tensor& mine) {
    std::vector<Tensor> all{torch::empty_like(mine), torch::empty_like(mine)};
    mesh.get_group().all_gather(all, mine);
    return all[static_cast<std::size_t>(1 - mesh.get_local_rank())];
  };
  const auto x = torch::ones({64});
  for (int step = 0; step < 2; ++step) {
    const auto apart = net[0]->as<torch::nn::Dropout>()->forward(x);
    const auto alike = net[1]->as<torch::nn::Dropout>()->forward(x);
    EXPECT_FALSE(apart.equal(other_rank(apart)));
    EXPECT_TRUE(alike.equal(other_rank(alike)));
    EXPECT_TRUE(apart.eq(0).logical_or(apart.eq(2)).all().item<bool>());
  }
  net->eval();
  EXPECT_TRUE(net[0]->as<torch::nn::Dropout>()->forward(x).equal(x));
}

const Scenario parts("tensor_parallel_parts", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  compare_losses(mesh);
  compare_layers(mesh);
  compare_tied(mesh);
  check_dropout(mesh);
});

const Scenario losses_of_four("tensor_parallel_losses", [] {
  const auto context = init({.backend = "shm"});
  compare_losses(init_device_mesh({context.world_size()}));
});

TEST(TensorParallelParts, LossOfMoreRanksThanParts) {
  expect_all_passed(run_ranks(losses_of_four, {.world_size = 4}));
}

TEST(TensorParallelParts, LossLayersTiesAndDropout) { expect_all_passed(run_ranks(parts)); }

}  // namespace
}  // namespace lockstep::testing
