// SPDX-License-Identifier: BSD-3-Clause
// An inf on one rank, between real processes.
#include <limits>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kSteps = 6;

amp::GradScalerOptions options(std::optional<ProcessGroup> group = {}) {
  return {.init_scale = 1024, .growth_interval = 2, .process_group = std::move(group)};
}

// The same on all ranks.
void expect_common(const Context& context, const at::Tensor& tensor, const std::string& what) {
  auto of_rank_0 = tensor.detach().clone();
  context.group().broadcast(of_rank_0, 0);
  EXPECT_TRUE(torch::equal(of_rank_0, tensor)) << what;
}

const testing::Scenario with_ddp("amp with ddp", [] {
  const auto context = init();
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::Flatten(), torch::nn::Linear(144, 2));
  to_memory_format(*net, at::MemoryFormat::ChannelsLast);
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  amp::GradScaler scaler(torch::kCPU, options());
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(100 * (context.rank() + 1) + step);
    const auto before = net->parameters()[0].detach().clone();
    auto images = torch::randn({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
    const bool bad = step % 3 == 1;
    if (bad && context.rank() == 1) images[0][0][0][0] = kInf;
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const amp::Autocast autocast(torch::kCPU, {.dtype = torch::kHalf});
      loss = ddp->forward(images).square().mean();
    }
    scaler.scale(loss).backward();
    EXPECT_EQ(net->parameters()[0].grad().strides(), net->parameters()[0].strides());
    EXPECT_EQ(scaler.step(optimizer), !bad) << "step " << step;
    scaler.update();
    EXPECT_EQ(torch::equal(before, net->parameters()[0]), bad) << "step " << step;
  }
  EXPECT_EQ(scaler.get_scale(), 512) << "lowered twice, raised once";
  for (const auto& item : net->named_parameters()) expect_common(context, item.value(), item.key());
});

TEST(Amp, AnInfOnOneRankSkipsTheStepOnAll) {
  for (const int ranks : {2, 3}) {
    testing::expect_all_passed(testing::run_ranks(with_ddp, {.world_size = ranks}));
  }
}

// Gradients that are no averages: each rank trains what it alone has.
template <typename Optimizer>
void train_alone(const Context& context) {
  const auto weight = torch::full({3}, static_cast<float>(context.rank() + 1), torch::requires_grad());
  Optimizer optimizer({weight}, 0.1);
  amp::GradScaler scaler(torch::kCPU, options(context.group()));
  std::vector<bool> stepped;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto before = weight.detach().clone();
    const bool bad = step % 3 == 1;
    // In step 4 rank 0 has no gradient, but still learns of the other rank's inf.
    const auto loss = (weight * (bad && context.rank() == 1 ? kInf : 1.0F)).sum();
    const auto scaled = scaler.scale(loss);
    if (!(step == 4 && context.rank() == 0)) scaled.backward();
    if (step % 2 == 0) scaler.unscale_(optimizer);
    const bool said = scaler.step(optimizer);
    scaler.update();
    stepped.push_back(!torch::equal(before, weight));
    const bool knows = std::is_same_v<Optimizer, torch::optim::SGD>;
    EXPECT_EQ(said, knows ? stepped.back() : true);
  }
  EXPECT_THAT(stepped, ::testing::ElementsAre(true, false, true, true, false, true));
  EXPECT_FLOAT_EQ(weight[0].item<float>(), static_cast<float>(context.rank() + 1) - 0.4F);
  EXPECT_EQ(scaler.get_scale(), 512);
}

const testing::Scenario without_ddp("amp without ddp", [] {
  const auto context = init();
  train_alone<torch::optim::SGD>(context);
  train_alone<optim::FusedSGD>(context);
});

TEST(Amp, WithAGroupAnInfSkipsTheStepOnAllRanks) {
  testing::expect_all_passed(testing::run_ranks(without_ddp, {.world_size = 2}));
  testing::expect_all_passed(testing::run_ranks(without_ddp, {.world_size = 3}));
}

const testing::Scenario alone("amp without group", [] {
  const auto context = init();
  const auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.1);
  amp::GradScaler scaler(torch::kCPU, options());
  scaler.scale((weight * (context.rank() == 1 ? kInf : 1.0F)).sum()).backward();
  EXPECT_EQ(scaler.step(optimizer), context.rank() != 1);
});

TEST(Amp, WithoutAGroupEachRankDecidesForItself) { testing::expect_all_passed(testing::run_ranks(alone)); }

const testing::Scenario in_threads("amp in threads", [] {
  spawn_threads(2, [](Context& context) {
    const auto product = [] { return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(); };
    const amp::Autocast autocast(torch::kCPU, {.enabled = context.rank() == 0});
    context.group().barrier();
    EXPECT_EQ(product(), context.rank() == 0 ? torch::kBFloat16 : torch::kFloat);
  });
  torch::nn::Linear net(2, 2);
  DataParallel parallel(net, {.device_ids = {torch::kCPU, torch::kCPU}});
  const auto images = torch::ones({4, 2});
  EXPECT_EQ(parallel->forward(images).scalar_type(), torch::kFloat);
  const amp::Autocast autocast(torch::kCPU, {.dtype = torch::kHalf});
  EXPECT_EQ(parallel->forward(images).scalar_type(), torch::kHalf) << "replicas work as the caller does";
});

TEST(Amp, StateIsPerThreadAndPassesToReplicas) {
  testing::expect_all_passed(testing::run_ranks(in_threads, {.world_size = 1}));
}

}  // namespace
}  // namespace lockstep
