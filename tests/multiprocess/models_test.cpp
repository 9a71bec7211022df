// SPDX-License-Identifier: BSD-3-Clause
// The networks of lockstep::models in DistributedDataParallel and DataParallel.
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/language.h>
#include <lockstep/models/vision.h>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace models;

at::Tensor logits_of(const at::Tensor& logits) { return logits; }
at::Tensor logits_of(const std::tuple<at::Tensor, at::Tensor>& output) { return std::get<0>(output); }

template <typename Net>
void backward(Net& net, const at::Tensor& input) {
  logits_of(net->forward(input)).square().mean().backward();
}

void expect_same_gradients(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& averaged,
                           double tolerance) {
  ASSERT_EQ(expected.size(), averaged.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto difference = (averaged[i].grad() - expected[i].grad()).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * std::max(1e-3, expected[i].grad().abs().max().item<double>()));
  }
}

at::Tensor part_of(const at::Tensor& batch) {
  return batch.chunk(get_world_size())[static_cast<std::size_t>(get_rank())];
}

// On each rank a part of the batch, and its gradients the averages, which are those of the whole batch.
template <typename Make>
void expect_trains(const char* name, const at::Tensor& batch, Make make) {
  SCOPED_TRACE(name);
  torch::manual_seed(1);
  auto alone = make();
  torch::manual_seed(static_cast<std::uint64_t>(1 + get_rank()));
  auto net = make();
  DistributedDataParallel ddp(net);
  EXPECT_TRUE(equal(state_dict(net), state_dict(alone))) << "starting weights and buffers";
  // eval(): without dropout, and with each sample by itself in normalizations.
  alone->eval();
  ddp->eval();
  backward(alone, batch);
  backward(ddp, part_of(batch));
  expect_same_gradients(alone->parameters(), ddp->parameters(), 1e-5);
  // The buffers of rank 0 before each forward.
  ddp->train();
  backward(ddp, batch + get_rank());
  ddp->eval();
  backward(ddp, batch);
  std::vector<at::Tensor> sums;
  for (const auto& buffer : net->buffers()) sums.push_back(buffer.to(at::kDouble).sum());
  if (!sums.empty()) {
    auto most = torch::stack(sums);
    auto least = most.clone();
    default_group().all_reduce(most, ReduceOp::MAX);
    default_group().all_reduce(least, ReduceOp::MIN);
    EXPECT_TRUE(torch::equal(most, least)) << "buffers";
  }
  auto plain = make();
  EXPECT_EQ(load_state_dict(plain, state_dict(ddp)).prefix, PrefixChange::removed);
}

// Its layers have two names each.
void expect_normalizes_together(const at::Tensor& points) {
  torch::manual_seed(1);
  DGCNN alone(DGCNNOptions{.k = 4, .emb_dims = 32, .dropout = 0});
  DGCNN net(DGCNNOptions{.k = 4, .emb_dims = 32, .dropout = 0});
  load_state_dict(net, state_dict(alone));
  convert_sync_batchnorm(net);
  DistributedDataParallel ddp(net);
  backward(alone, points);
  backward(ddp, part_of(points));
  expect_same_gradients(alone->parameters(), ddp->parameters(), 1e-4);
  for (const auto& [name, value] : state_dict(alone)) {
    EXPECT_TRUE(torch::allclose(state_dict(net).at(name).as_tensor(), value.as_tensor(), 1e-4, 1e-6))
        << name.as_string();
  }
}

const Scenario models_in_ddp("models in DistributedDataParallel", [] {
  const auto context = init();
  torch::manual_seed(7);
  const auto images = torch::randn({4, 3, 32, 32});
  const auto points = torch::randn({4, 3, 16});
  const auto tokens = torch::randint(32, {4, 6}, torch::kLong);
  expect_trains("ResNet", images, [] { return ResNet(ResNetBlock::basic, std::array{1L, 1L, 1L, 1L}); });
  expect_trains("PointNet", points, [] { return PointNet(); });
  expect_trains("DGCNN", points, [] { return DGCNN(DGCNNOptions{.k = 4, .emb_dims = 32}); });
  expect_normalizes_together(points);
  expect_trains("GPT2", tokens, [] {
    return GPT2(GPT2Options{.vocab_size = 40, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2});
  });
});

TEST(Models, TrainInDistributedDataParallel) { expect_all_passed(run_ranks(models_in_ddp)); }

const Scenario models_in_data_parallel("models in DataParallel", [] {
  torch::manual_seed(7);
  const auto expect_same = [](auto net, const at::Tensor& batch) {
    net->eval();
    auto copy = DataParallel(net, {.device_ids = {at::kCPU, at::kCPU}});
    const auto own = logits_of(net->forward(batch));
    EXPECT_TRUE(torch::allclose(logits_of(copy->forward(batch)), own, 1e-4, 1e-5));
  };
  auto net = mobilenet_v2();
  net->classifier = net->replace_module(
      "classifier", torch::nn::Sequential(torch::nn::Dropout(0.2), torch::nn::Linear(1280, 3)));
  expect_same(net, torch::randn({4, 3, 32, 32}));
  expect_same(DGCNN(DGCNNOptions{.k = 4, .emb_dims = 32}), torch::randn({4, 3, 16}));
  expect_same(GPT2(GPT2Options{.vocab_size = 40, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2}),
              torch::randint(32, {4, 6}, torch::kLong));
});

TEST(Models, RunInDataParallel) { expect_all_passed(run_ranks(models_in_data_parallel, {.world_size = 1})); }

}  // namespace
}  // namespace lockstep::testing
