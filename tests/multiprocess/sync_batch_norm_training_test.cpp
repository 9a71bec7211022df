// SPDX-License-Identifier: BSD-3-Clause
// Training with SyncBatchNorm against one process with the whole batch.
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "parity/models/resnet.h"
#include "support/ranks.h"

namespace lockstep::sync_batch_norm_training_test {
namespace {

constexpr int kSteps = 6;
constexpr int kBatch = 6;

struct Trained {
  std::vector<double> losses;
  torch::OrderedDict<std::string, at::Tensor> tensors;  // parameters and buffers
};

torch::OrderedDict<std::string, at::Tensor> all_of(const torch::nn::Module& module) {
  torch::OrderedDict<std::string, at::Tensor> all;
  for (const auto& item : module.named_parameters()) all.insert(item.key(), item.value());
  for (const auto& item : module.named_buffers()) all.insert(item.key(), item.value());
  return all;
}

// In double precision, so that nothing but a mistake makes the difference. `group`: whose part of the batch.
template <typename Net, typename Model>
Trained train(const Net& net, Model& model, const ProcessGroup* group, int micro_steps) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Trained trained;
  manual_seed(3);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < micro_steps; ++micro) {
      auto images = at::randn({kBatch, 1, 12, 12}, at::kDouble);
      auto labels = at::randint(0, 10, {kBatch}, at::kLong);
      if (group != nullptr) {
        const auto share = kBatch / group->size();
        images = images.narrow(0, share * group->rank(), share);
        labels = labels.narrow(0, share * group->rank(), share);
      }
      const auto loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
      if constexpr (requires { model->no_sync(); }) {
        const auto guard = micro + 1 < micro_steps ? std::optional(model->no_sync()) : std::nullopt;
        loss.backward();
      } else {
        loss.backward();
      }
      auto mean = loss.detach().clone();
      if (group != nullptr) group->all_reduce(mean, ReduceOp::AVG);
      trained.losses.push_back(mean.template item<double>());
    }
    optimizer.step();
  }
  trained.tensors = all_of(*net);
  return trained;
}

testing::ResNet18 small_resnet() {
  manual_seed(1);
  testing::ResNet18 net(4, 1);
  net->to(at::kDouble);
  return net;
}

void expect_same_training(const Context& context, int micro_steps) {
  const auto whole = small_resnet();
  auto plain = whole;
  const auto expected = train(whole, plain, nullptr, micro_steps);
  auto net = convert_sync_batchnorm(small_resnet());
  // Layers stay converted when the module's tensors are replaced, as by a move to a device.
  net->to(at::kFloat);
  net->to(at::kDouble);
  const auto fresh = small_resnet();
  for (const auto& item : fresh->named_parameters()) {
    const torch::NoGradGuard no_grad;
    net->named_parameters()[item.key()].copy_(item.value());
  }
  DistributedDataParallel ddp(net);
  const auto ours = train(net, ddp, &context.group(), micro_steps);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], expected.losses[i], 1e-9) << i;
  }
  for (const auto& item : expected.tensors) {
    const auto& tensor = ours.tensors[item.key()];
    EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), item.value().to(at::kDouble), 1e-7, 1e-8)) << item.key();
  }
}

const testing::Scenario resnet("sync batch norm: resnet", [] {
  const auto context = init();
  expect_same_training(context, 1);
});

TEST(SyncBatchNorm, AConvertedResNetMatchesTheWholeBatch) {
  testing::expect_all_passed(testing::run_ranks(resnet, {.world_size = 2}));
  testing::expect_all_passed(testing::run_ranks(resnet, {.world_size = 3}));
}

const testing::Scenario accumulated("sync batch norm: no_sync", [] {
  const auto context = init();
  expect_same_training(context, 2);
});

TEST(SyncBatchNorm, AccumulatedGradientsMatchTheWholeBatches) {
  testing::expect_all_passed(testing::run_ranks(accumulated));
}

// The layers of an average are a converted module's, and update_bn() is over the batches of all ranks.
const testing::Scenario averaged("sync batch norm: averaged model", [] {
  const auto context = init();
  const auto make_net = [] {
    torch::manual_seed(4);
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  };
  torch::manual_seed(5);
  const auto inputs = torch::randn({2, 6, 3});  // batches
  std::vector<at::Tensor> own;
  for (const auto& batch : inputs.unbind()) own.push_back(batch.narrow(0, 3 * context.rank(), 3));

  optim::AveragedModel here(convert_sync_batchnorm(make_net()));
  optim::AveragedModel whole(make_net());
  optim::update_bn(own, here);
  optim::update_bn(inputs.unbind(), whole);
  for (const auto& buffer : whole->named_buffers())
    EXPECT_TRUE(torch::allclose(here->named_buffers()[buffer.key()], buffer.value())) << buffer.key();
});

TEST(SyncBatchNorm, StaysSynchronizedInAnAveragedModel) {
  testing::expect_all_passed(testing::run_ranks(averaged));
}

// Statistics in fp32 of bf16 activations, and buffers that stay fp32.
const testing::Scenario mixed("sync batch norm: mixed precision", [] {
  const auto context = init();
  torch::manual_seed(2);
  testing::ResNet18 net(4, 1);
  convert_sync_batchnorm(net);
  DistributedDataParallel ddp(
      net, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
  torch::optim::SGD optimizer(ddp->parameters(), 0.05);
  torch::manual_seed(5);
  const auto images = torch::randn({kBatch, 1, 12, 12});
  const auto labels = torch::randint(0, 10, {kBatch}, at::kLong);
  const auto own = kBatch / 2 * context.rank();
  double first = 0;
  double last = 0;
  for (int step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    const auto output = ddp->forward(images.narrow(0, own, kBatch / 2));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    const auto loss =
        torch::nn::functional::cross_entropy(output.to(at::kFloat), labels.narrow(0, own, kBatch / 2));
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first / 2);
  for (const auto& item : all_of(*net)) {
    auto here = item.value().detach().to(at::kDouble);
    const auto mean = here.clone();
    context.group().all_reduce(mean, ReduceOp::AVG);
    EXPECT_TRUE(torch::equal(mean, here)) << item.key();
  }
});

TEST(SyncBatchNorm, TrainsInMixedPrecision) { testing::expect_all_passed(testing::run_ranks(mixed)); }

const testing::Scenario in_threads("sync batch norm: in threads", [] {
  spawn_threads(3, [](Context& context) { expect_same_training(context, 1); });
});

TEST(SyncBatchNorm, ThreadsMatchTheWholeBatch) {
  testing::expect_all_passed(testing::run_ranks(in_threads, {.world_size = 1}));
}

}  // namespace
}  // namespace lockstep::sync_batch_norm_training_test
