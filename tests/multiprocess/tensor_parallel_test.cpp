// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallel beside one process: gradients, steps of AdamW, data parallel, dropout, state, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/layers.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/error_of.h"
#include "support/parallel_net.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor_parallel;
namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::pair<Tensor, Tensor> draw_batch(int step, int replica = 0) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + replica));
  const auto tokens = torch::randint(ParallelNetImpl::kVocabulary, {3, ParallelNetImpl::kLength + 1});
  return {tokens.slice(1, 0, -1), tokens.slice(1, 1).reshape({-1})};
}

Tensor flat(const Tensor& logits) { return logits.flatten(0, 1); }

// This rank's part of `whole` in the shape of `part`.
Tensor part_like(const Tensor& whole, const Tensor& part, const DeviceMesh& mesh) {
  auto result = whole.detach();
  for (int dim = 0; dim < whole.dim(); ++dim) {
    if (whole.size(dim) == part.size(dim)) continue;
    const auto chunk = (whole.size(dim) + mesh.size() - 1) / mesh.size();
    result = result.narrow(dim, std::min(chunk * mesh.get_local_rank(), whole.size(dim)), part.size(dim));
  }
  return result;
}

void expect_close(const torch::nn::Module& net, const torch::nn::Module& expected, const DeviceMesh& mesh) {
  const auto ours = net.named_parameters(), whole = expected.named_parameters();
  ASSERT_EQ(ours.size(), whole.size());
  for (const auto& item : ours) {
    SCOPED_TRACE(item.key());
    const auto own = item.value().detach(), gradient = item.value().grad();
    EXPECT_LT((own - part_like(whole[item.key()], own, mesh)).abs().max().item<double>(), 1e-6);
    ASSERT_TRUE(gradient.defined());
    const auto expected_gradient = part_like(whole[item.key()].grad(), gradient, mesh);
    EXPECT_LT((gradient - expected_gradient).abs().max().item<double>(), 1e-6);
    if (own.sizes() != whole[item.key()].sizes()) continue;
    auto first = gradient.clone();
    mesh.get_group().broadcast(first, 0);
    EXPECT_TRUE(first.equal(gradient)) << "replicated gradients differ between ranks";
  }
}

void train_beside_one_process(const tp::ParallelizePlan& plan, bool parallel_loss) {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({context.world_size()}, {.mesh_dim_names = {"tp"}});
  torch::manual_seed(7);
  ParallelNet expected;
  expected->to(torch::kDouble);
  torch::manual_seed(static_cast<std::uint64_t>(7 + context.rank()));
  ParallelNet net;
  net->to(torch::kDouble);
  tp::parallelize_module(*net, mesh, plan);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2), reference(expected->parameters(), 1e-2);
  for (int step = 0; step < 20; ++step) {
    SCOPED_TRACE(step);
    const auto [tokens, target] = draw_batch(step);
    optimizer.zero_grad();
    reference.zero_grad();
    const auto logits = flat(net->forward(tokens));
    const auto loss =
        parallel_loss ? tp::loss_parallel(logits, target, mesh) : F::cross_entropy(logits, target);
    const auto expected_loss = F::cross_entropy(flat(expected->forward(tokens)), target);
    EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), 1e-6);
    loss.backward();
    expected_loss.backward();
    optimizer.step();
    reference.step();
    expect_close(*net, *expected, mesh);
    if (::testing::Test::HasFailure()) return;
  }
}

const Scenario tensor_parallel_steps("tensor_parallel_steps",
                                     [] { train_beside_one_process(tensor_plan(), false); });
const Scenario sequence_parallel_steps("sequence_parallel_steps",
                                       [] { train_beside_one_process(sequence_plan(), true); });

class TensorParallel : public ::testing::TestWithParam<int> {};

TEST_P(TensorParallel, TrainsAsOneProcess) {
  expect_all_passed(run_ranks(tensor_parallel_steps, {.world_size = GetParam()}));
}

TEST_P(TensorParallel, TrainsAsOneProcessOnPartsOfTheSequence) {
  expect_all_passed(run_ranks(sequence_parallel_steps, {.world_size = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallel, ::testing::Values(2, 4));

}  // namespace
}  // namespace lockstep::testing
