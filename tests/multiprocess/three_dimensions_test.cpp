// SPDX-License-Identifier: BSD-3-Clause
// Data, pipeline and tensor parallel on one mesh, beside one process; checkpoints that continue on
// others, in one process and in Python. LOCKSTEP_MESH_STEPS=50 for a long run.
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/grad_scaler.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/data/sampler.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "base/env.h"
#include "support/parallel_net.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using torch::optim::AdamW;

constexpr int kFurtherSteps = 3, kSamples = 8, kFeatures = 16, kBlocks = 4;
// The stages of a pipeline have other parameters.
constexpr StateDictOptions kFlat{.flatten_optimizer_state_dict = true};
constexpr double kMaxNorm = 0.05, kRate = 1e-3;

int first_steps() { return Env().get_int("LOCKSTEP_MESH_STEPS").value_or(10); }

torch::nn::Sequential whole_net(int seed = 60) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  torch::nn::Sequential net;
  for (int i = 0; i < kBlocks; ++i)
    net->push_back(ParallelBlock(kFeatures, /*head_dim=*/4, /*p=*/0.0, /*bias=*/true));
  return net;
}

std::pair<Tensor, Tensor> samples_of(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step % 5));
  const auto x = torch::randn({kSamples, 4, kFeatures});
  return {x, torch::randn({kSamples, 4, kFeatures})};
}

struct OneProcess {
  explicit OneProcess(int seed = 60) : net(whole_net(seed)) {}

  double step(int number) {
    const auto [x, target] = samples_of(number);
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(net->forward(x), target);
    loss.backward();
    norm = torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm);
    optimizer.step();
    return loss.item<double>();
  }

  void load(const std::string& folder) {
    const auto loaded = distributed_checkpoint::load(folder);
    set_model_state_dict(*net, loaded.at("model").as_dict());
    set_optimizer_state_dict(*net, optimizer, loaded.at("optimizer").as_dict(), kFlat);
  }

  torch::nn::Sequential net;
  AdamW optimizer{net->parameters(), kRate};
  double norm = 0;
};

// A rank of a mesh with dimensions "dp", "pp" and "tp".
class Rank {
 public:
  Rank(int dp, int pp, int tp, bool shards)
      : mesh_(init_device_mesh({dp, pp, tp}, {.mesh_dim_names = {"dp", "pp", "tp"}})),
        data_(mesh_["dp"].get_group()),
        pipeline_(mesh_["pp"].get_group()) {
    using namespace tensor_parallel;
    stage_ = pipelining::split_sequential(whole_net(),
                                          pipeline_.size())[static_cast<std::size_t>(pipeline_.rank())];
    parallelize_module(*stage_, mesh_["tp"],
                       {{"*.[qkv]", ColwiseParallel()},
                        {"*.o", RowwiseParallel()},
                        {"*.fc1", ColwiseParallel()},
                        {"*.fc2", RowwiseParallel()}});
    pipelining::PipelineStageOptions options{.group = pipeline_};
    if (shards) {
      for (const auto& block : *stage_) fully_shard(*block.ptr(), {.mesh = mesh_["dp"]});
      optimizer_.emplace(fully_shard(*stage_, {.mesh = mesh_["dp"]}).parameters(), kRate);
    } else {
      options.data_parallel_group = data_;
      optimizer_.emplace(stage_->parameters(), kRate);
    }
    const pipelining::PipelineStage stage(stage_, pipeline_.rank(), pipeline_.size(), options);
    schedule_.emplace(std::vector{stage}, /*n_microbatches=*/2,
                      [this](const Tensor& y, const Tensor& target) {
                        const auto loss = torch::mse_loss(y, target);
                        return scaler_ ? scaler_->scale(loss) : loss;
                      });
  }

  void train_beside(OneProcess& expected, int first, int last, double tolerance = 1e-5) {
    for (int step = first; step < last; ++step) {
      SCOPED_TRACE(step);
      const auto losses = backward(step);
      const auto norm = schedule_->clip_grad_norm_(kMaxNorm);
      optimizer_->step();
      const auto expected_loss = expected.step(step);
      ASSERT_NEAR(norm, expected.norm, tolerance);
      if (losses.empty()) continue;
      const auto loss = torch::stack(losses).mean();
      data_.all_reduce(loss, ReduceOp::AVG);
      ASSERT_NEAR(loss.item<double>(), expected_loss, tolerance);
    }
  }

  // As with float16: a gradient that is infinite on one rank skips the step on all.
  void train_scaled_beside(OneProcess& expected, int steps, const ProcessGroup& all) {
    scaler_.emplace(at::kCPU, amp::GradScalerOptions{.init_scale = 1024, .process_group = all});
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(step);
      backward(step);
      scaler_->unscale_(*optimizer_);
      const auto norm = schedule_->clip_grad_norm_(kMaxNorm);
      scaler_->step(*optimizer_);
      scaler_->update();
      expected.step(step);
      EXPECT_NEAR(norm, expected.norm, 1e-5);
    }
    backward(steps);
    const auto weight = optimizer_->param_groups().front().params().front();
    if (all.rank() == 3) weight.grad().fill_(std::numeric_limits<float>::infinity());
    const auto before = weight.detach().clone();
    scaler_->step(*optimizer_);
    scaler_->update();
    EXPECT_TRUE(weight.detach().equal(before));
    EXPECT_EQ(scaler_->get_scale(), 512);
  }

  void save(const std::string& folder) { distributed_checkpoint::save(state(), folder); }
  void load(const std::string& folder) {
    auto loaded = state();
    distributed_checkpoint::load(loaded, folder);
    set_model_state_dict(*stage_, loaded.at("model").as_dict());
    set_optimizer_state_dict(*stage_, *optimizer_, loaded.at("optimizer").as_dict(), kFlat);
  }

 private:
  pipelining::Tensors backward(int step) {
    const auto [x, target] = samples_of(step);
    const auto sampler = std::make_shared<data::DistributedSampler>(
        kSamples, data::DistributedSamplerOptions{.num_replicas = mesh_["dp"].size(),
                                                  .rank = mesh_.get_local_rank("dp")});
    sampler->set_epoch(step);
    const auto rows = data::BatchSampler(sampler, kSamples).iter()->next();
    optimizer_->zero_grad();
    pipelining::Tensors losses;
    schedule_->step({x.index_select(0, rows)}, target.index_select(0, rows), &losses);
    return losses;
  }
  Dict state() {
    return {{"model", get_model_state_dict(*stage_)},
            {"optimizer", get_optimizer_state_dict(*stage_, *optimizer_, kFlat)}};
  }

  DeviceMesh mesh_;
  ProcessGroup data_, pipeline_;
  torch::nn::Sequential stage_;
  std::optional<AdamW> optimizer_;
  std::optional<amp::GradScaler> scaler_;
  std::optional<pipelining::ScheduleInterleavedZeroBubble> schedule_;
};

// The model of a checkpoint has the parameters of `net`. Rank 0 looks.
void expect_parameters(const std::string& folder, const torch::nn::Module& net, double tolerance) {
  if (get_rank() != 0) return;
  const auto model = distributed_checkpoint::load(folder).at("model").as_dict();
  for (const auto& parameter : net.named_parameters()) {
    // Attention does not depend on the bias of its keys, whose gradient is what rounding leaves of zero.
    if (parameter.key().ends_with(".k.bias")) continue;
    const auto& value = model.at(parameter.key()).as_tensor();
    EXPECT_TRUE(value.allclose(parameter.value(), 0, tolerance))
        << parameter.key() << " differs by " << (value - parameter.value()).abs().max().item<double>();
  }
}

// One process continues from the checkpoint, and so do the ranks that wrote it. Leaves `folder`.pt for
// Python.
void check_one_process(Rank& ranks, const std::string& folder) {
  OneProcess alone(61);
  alone.load(folder);
  const auto loaded =
      save_bytes(Dict{{"model", get_model_state_dict(*alone.net)},
                      {"optimizer", get_optimizer_state_dict(*alone.net, alone.optimizer, kFlat)}});
  ranks.train_beside(alone, first_steps(), first_steps() + kFurtherSteps, 1e-6);
  ranks.save(folder + "_after");
  expect_parameters(folder + "_after", *alone.net, 1e-6);
  if (get_rank() != 0) return;
  List samples;
  for (int step = first_steps(); step < first_steps() + kFurtherSteps; ++step) {
    const auto [x, target] = samples_of(step);
    samples.items.emplace_back(List{x, target});
  }
  save(Dict{{"loaded", load_bytes(loaded)}, {"samples", samples}, {"after", state_dict(alone.net)}},
       folder + ".pt");
}

// The first steps on 2 x 2 x 2 ranks, and further ones on other meshes and in one process.
const Scenario three_dimensions("data, pipeline and tensor parallel", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shards : {false, true}) {
    SCOPED_TRACE(shards ? "fully_shard()" : "replicas");
    const auto folder = std::string(std::getenv("TEST_FOLDER")) + (shards ? "/sharded" : "/replicas");
    OneProcess expected;
    Rank cube(2, 2, 2, shards);
    cube.train_beside(expected, 0, first_steps());
    cube.save(folder);
    expect_parameters(folder, *expected.net, 1e-5);
    using Mesh = std::tuple<int, int, int>;
    for (const auto& [dp, pp, tp] : {shards ? Mesh{4, 1, 2} : Mesh{1, 4, 2}, Mesh{2, 4, 1}}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", dp, pp, tp));
      Rank other(dp, pp, tp, !shards);
      other.load(folder);
      OneProcess continued(61);
      continued.load(folder);
      other.train_beside(continued, first_steps(), first_steps() + 2, 1e-6);
      const auto after = fmt::format("{}_{}_{}_{}", folder, dp, pp, tp);
      other.save(after);
      expect_parameters(after, *continued.net, 1e-6);
    }
    check_one_process(cube, folder);
    if (::testing::Test::HasFailure()) return;
  }
});

const Scenario scaled("a GradScaler on a mesh", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shards : {false, true}) {
    SCOPED_TRACE(shards ? "fully_shard()" : "replicas");
    OneProcess expected;
    Rank(2, 2, 2, shards).train_scaled_beside(expected, 3, context.group());
  }
});
const Scenario measured("ranks that cut a net by time", [] {
  const auto context = init({.backend = "gloo"});
  const auto costs =
      torch::tensor(pipelining::measure_layers(whole_net(), samples_of(0).first, 1), at::kDouble);
  std::vector<Tensor> of_ranks{torch::empty_like(costs), torch::empty_like(costs)};
  context.group().all_gather(of_ranks, costs);
  EXPECT_EQ(costs.numel(), kBlocks);
  EXPECT_TRUE(of_ranks[0].equal(of_ranks[1]));
});
TEST(ThreeDimensions, AllRanksCutByTheSameTimes) { expect_all_passed(run_ranks(measured)); }

TEST(ThreeDimensions, SkipStepsTogether) { expect_all_passed(run_ranks(scaled, {.world_size = 8})); }

TEST(ThreeDimensions, TrainAsOneProcessAndGoOnElsewhere) {
  const TempFolder folder;
  expect_all_passed(
      run_ranks(three_dimensions, {.world_size = 8, .env = {{"TEST_FOLDER", folder.path().string()}}}));
  ASSERT_FALSE(HasFailure());
  run_python("multiprocess/three_dimensions.py", {.args = {folder.file("replicas"), folder.file("sharded")}});
}

}  // namespace
}  // namespace lockstep::testing
