// SPDX-License-Identifier: BSD-3-Clause
// Data, pipeline and tensor parallel on one mesh, beside one process.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/parallel_net.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;

constexpr int kSteps = 50, kSamples = 8, kFeatures = 16;

ParallelBlock block_of(int stage) {
  torch::manual_seed(static_cast<std::uint64_t>(60 + stage));
  return ParallelBlock(kFeatures, /*head_dim=*/4, /*p=*/0.0, /*bias=*/true);
}

std::pair<Tensor, Tensor> samples_of(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step % 5));
  const auto x = torch::randn({kSamples, 4, kFeatures});
  return {x, torch::randn({kSamples, 4, kFeatures})};
}

std::vector<double> losses_of_one_process() {
  std::vector<ParallelBlock> blocks{block_of(0), block_of(1)};
  auto parameters = blocks[0]->parameters();
  for (const auto& parameter : blocks[1]->parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, 0.05);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, target] = samples_of(step);
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(blocks[1]->forward(blocks[0]->forward(x)), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

const Scenario three_dimensions("data, pipeline and tensor parallel", [] {
  namespace tp = tensor_parallel;
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2, 2}, {.mesh_dim_names = {"dp", "pp", "tp"}});
  const auto replicas = mesh["dp"].get_group(), pipeline = mesh["pp"].get_group();
  auto block = block_of(pipeline.rank());
  tp::parallelize_module(*block, mesh["tp"],
                         {{"[qkv]", tp::ColwiseParallel()},
                          {"o", tp::RowwiseParallel()},
                          {"fc1", tp::ColwiseParallel()},
                          {"fc2", tp::RowwiseParallel()}});
  torch::optim::SGD optimizer(block->parameters(), 0.05);
  pipelining::ScheduleInterleavedZeroBubble schedule(
      {pipelining::PipelineStage(block, pipeline.rank(), 2,
                                 {.group = pipeline, .data_parallel_group = replicas})},
      /*n_microbatches=*/2, [](const Tensor& y, const Tensor& target) { return torch::mse_loss(y, target); });
  const auto expected = losses_of_one_process();
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, target] = samples_of(step);
    const auto rows =
        at::indexing::Slice(replicas.rank() * kSamples / 2, (replicas.rank() + 1) * kSamples / 2);
    optimizer.zero_grad();
    pipelining::Tensors losses;
    schedule.step({x.index({rows})}, target.index({rows}), &losses);
    optimizer.step();
    if (losses.empty()) continue;
    const auto loss = torch::stack(losses).mean();
    replicas.all_reduce(loss, ReduceOp::AVG);
    ASSERT_NEAR(loss.item<double>(), expected[static_cast<std::size_t>(step)], 1e-5) << "step " << step;
  }
});

TEST(ThreeDimensions, TrainAsOneProcess) {
  expect_all_passed(run_ranks(three_dimensions, {.world_size = 8}));
}

}  // namespace
}  // namespace lockstep::testing
