// SPDX-License-Identifier: BSD-3-Clause
// DistributedDataParallel of a module whose layers ModelParallel placed on two devices of each rank.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/nn/model_parallel.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

const c10::Device kFirst(at::kMTIA, 0), kSecond(at::kMTIA, 1);  // of two_devices.cpp

Sequential make_net(int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return Sequential(Linear(6, 5), torch::nn::Tanh(), Linear(5, 7), torch::nn::Tanh(), Linear(7, 3));
}

const Scenario replicas("ModelParallel under DistributedDataParallel", [] {
  const auto context = init({.backend = "shm", .device = kFirst});
  auto expected = make_net(5), net = make_net(5 + context.rank());  // rank 0's weights count
  const ModelParallel parts(*net, {{"", kFirst}, {"[24]", kSecond}});
  DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2), reference(expected->parameters(), 1e-2);
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    const auto x = torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(1 + step));
    const auto own = x.chunk(context.world_size())[static_cast<std::size_t>(context.rank())];
    optimizer.zero_grad();
    reference.zero_grad();
    at::Tensor loss;
    {
      const auto scope = parts.follow();
      loss = ddp->forward(own).pow(2).mean();
    }
    EXPECT_EQ(loss.device(), kSecond);
    loss.backward();
    expected->forward(x).pow(2).mean().backward();
    const auto ours = net->parameters(), whole = expected->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].grad().device(), i < 2 ? kFirst : kSecond);
      EXPECT_TRUE(ours[i].grad().cpu().allclose(whole[i].grad(), 0, 1e-6)) << i;
    }
    optimizer.step();
    reference.step();
  }
});

TEST(ModelParallelReplicas, HaveTheGradientsOfOneProcess) { expect_all_passed(run_ranks(replicas)); }

}  // namespace
}  // namespace lockstep::testing
