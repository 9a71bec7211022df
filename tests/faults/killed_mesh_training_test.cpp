// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training with data, pipeline and tensor parallelism is killed; the run continues with the bits
// of a run without the kill, and on another mesh within 1e-6.
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "faults/killed_training.h"
#include "support/parallel_net.h"

namespace lockstep::testing::killed_mesh_training_test {
namespace {

using at::Tensor;
constexpr StateDictOptions kFlat{.flatten_optimizer_state_dict = true};
constexpr int kWidth = 16, kSamples = 8;

torch::nn::Sequential whole_net() {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) net->push_back(ParallelBlock(kWidth, /*head_dim=*/4, /*p=*/0.0, /*bias=*/true));
  net->to(torch::kDouble);
  return net;
}

struct MeshRun {
  MeshRun(int dp, int pp, int tp)
      : mesh(init_device_mesh({dp, pp, tp}, {.mesh_dim_names = {"dp", "pp", "tp"}})),
        data(mesh["dp"].get_group()),
        pipeline(mesh["pp"].get_group()) {
    using namespace tensor_parallel;
    stage = pipelining::split_sequential(whole_net(), pp)[static_cast<std::size_t>(pipeline.rank())];
    parallelize_module(*stage, mesh["tp"],
                       {{"*.[qkv]", ColwiseParallel()},
                        {"*.o", RowwiseParallel()},
                        {"*.fc1", ColwiseParallel()},
                        {"*.fc2", RowwiseParallel()}});
    for (const auto& block : *stage) fully_shard(*block.ptr(), {.mesh = mesh["dp"]});
    optimizer.emplace(fully_shard(*stage, {.mesh = mesh["dp"]}).parameters(), 1e-3);
    schedule.emplace(pipelining::PipelineStage(stage, pipeline.rank(), pp, {.group = pipeline}),
                     /*n_microbatches=*/4,
                     [](const Tensor& y, const Tensor& target) { return torch::mse_loss(y, target); });
  }
  void train() {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    const auto own = [&](const Tensor& all) {
      return all.chunk(data.size())[static_cast<std::size_t>(data.rank())];
    };
    const auto x = torch::randn({kSamples, 4, kWidth}, torch::kDouble), target = torch::randn_like(x);
    optimizer->zero_grad();
    schedule->step({own(x)}, own(target));
    schedule->clip_grad_norm_(0.1);
    optimizer->step();
    ++step;
  }
  Dict state() {
    return {{"model", get_model_state_dict(*stage)},
            {"optimizer", get_optimizer_state_dict(*stage, *optimizer, kFlat)},
            {"step", step}};
  }
  void restore(const Dict& state) {
    set_model_state_dict(*stage, state.at("model").as_dict());
    set_optimizer_state_dict(*stage, *optimizer, state.at("optimizer").as_dict(), kFlat);
    step = state.at("step").as_int();
  }
  // All parameters of all stages.
  Dict whole() {
    const auto folder = *Env().get("TEST_FOLDER") + "_whole";
    distributed_checkpoint::save({{"model", get_model_state_dict(*stage)}}, folder);
    return distributed_checkpoint::load(folder).at("model").as_dict();
  }

  DeviceMesh mesh;
  ProcessGroup data, pipeline;
  torch::nn::Sequential stage;
  std::optional<torch::optim::AdamW> optimizer;
  std::optional<pipelining::Schedule1F1B> schedule;
  std::int64_t step = 0;
};

const Scenario doomed_mesh("faults: doomed mesh training", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  MeshRun run(2, 2, 2);
  train_until_killed(run);
});

const Scenario resumed_mesh("faults: resumed mesh training", [] {
  const auto context = init({.backend = "shm"});
  MeshRun expected(2, 2, 2), run(2, 2, 2), elsewhere(1, 4, 2);
  train_to_the_end(expected);
  resume(run);
  EXPECT_TRUE(equal(run.state(), expected.state()));
  resume(elsewhere);
  const auto whole = expected.whole(), other = elsewhere.whole();
  default_group().barrier();
  ASSERT_EQ(whole.size(), other.size());
  for (const auto& [name, value] : whole)
    EXPECT_TRUE(other.at(name).as_tensor().allclose(value.as_tensor(), 0, 1e-6)) << name.as_string();
});

TEST(KilledMeshTraining, IsNamedAndResumedOnAnyMesh) {
  kill_and_resume(doomed_mesh, resumed_mesh, 1, [](int /*round*/) { return RunOptions{.world_size = 8}; });
}

}  // namespace
}  // namespace lockstep::testing::killed_mesh_training_test
