// SPDX-License-Identifier: BSD-3-Clause
// Training of experts on several ranks beside one process: with data parallel and sharded, and checkpoints.
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "multiprocess/experts.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

struct ExpertNetImpl : torch::nn::Module {
  explicit ExpertNetImpl(const std::optional<DeviceMesh>& mesh) {
    moe = register_module("moe", make_layer({.capacity_factor = 1.2, .mesh = mesh}));
    head = register_module("head", torch::nn::Linear(kDim, 3));
  }
  MixtureOfExpertsOutput forward(const Tensor& x) {
    const auto found = moe->forward(x);
    return {head->forward(x + found.output), found.aux_loss, found.dropped};
  }
  MixtureOfExperts moe{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ExpertNet);

template <typename Net>
Tensor loss_of(Net& net, int step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
  const auto x = torch::randn({8, kDim});
  const auto found = net.forward(x);
  return torch::nn::functional::cross_entropy(found.output, torch::randint(3, {8})) + 0.01 * found.aux_loss;
}

// Replicas over "dp", of experts over "ep". Returns the net and that of one process.
std::pair<ExpertNet, ExpertNet> train_beside_one_process(const DeviceMesh& mesh) {
  ExpertNet whole(std::nullopt), net(mesh["ep"]);
  const auto names = expert_names(*net);
  EXPECT_EQ(static_cast<std::int64_t>(names.size()), 4 * kExperts / mesh.size("ep"));
  EXPECT_TRUE(names.front().starts_with("moe.experts."));
  EXPECT_TRUE(expert_names(*whole).empty());
  DistributedDataParallel<ExpertNet> ddp(net, {.params_and_buffers_to_ignore = names});
  {
    const torch::NoGradGuard no_gradients;
    for (const auto& item : net->named_parameters())
      whole->named_parameters()[item.key()].copy_(item.value());
  }
  torch::optim::AdamW optimizer(net->parameters(), 1e-2), reference(whole->parameters(), 1e-2);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    loss_of(*ddp, step, get_rank()).backward();
    const auto parameters = net->named_parameters();
    for (const auto& name : names)
      mesh.get_group("dp").all_reduce(parameters[name].mutable_grad(), ReduceOp::AVG);
    for (int rank = 0; rank < 4; ++rank) (loss_of(*whole, step, rank) / 4).backward();
    const auto norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.1);
    EXPECT_NEAR(clip_grad_norm_(*net, 0.1), norm, 1e-5 * norm);
    optimizer.step();
    reference.step();
  }
  for (const auto& item : net->named_parameters())
    EXPECT_LT(relative_difference(item.value(), whole->named_parameters()[item.key()]), 1e-5) << item.key();
  return {net, whole};
}

const Scenario experts_and_replicas("experts_and_replicas", [] {
  const auto context = init({.backend = "shm"});
  train_beside_one_process(init_device_mesh({1, 4}, {.mesh_dim_names = {"dp", "ep"}}));
  const auto [net, whole] =
      train_beside_one_process(init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "ep"}}));

  const std::string folder = std::getenv("LOCKSTEP_TEST_CHECKPOINT");
  distributed_checkpoint::save({{"model", get_model_state_dict(*net)}}, folder);
  ExpertNet alone(std::nullopt);
  Dict state{{"model", get_model_state_dict(*alone)}};
  distributed_checkpoint::load(state, folder);
  set_model_state_dict(*alone, state.at("model").as_dict());
  for (const auto& item : alone->named_parameters())
    EXPECT_LT(relative_difference(item.value(), whole->named_parameters()[item.key()]), 1e-5) << item.key();
});

// Experts over "dp", the rest over all ranks.
FSDPModule shard_experts(ExpertNet& net, const DeviceMesh& mesh, bool share_memory) {
  const auto all = mesh[{"dp", "ep"}].flatten();
  fully_shard(*net->moe->experts, {.mesh = mesh["dp"], .share_memory = share_memory});
  auto sharded = fully_shard(*net, {.mesh = all, .share_memory = share_memory});
  EXPECT_EQ(sharded.shares_memory(), share_memory);
  return sharded;
}

constexpr StateDictOptions kFlat{.flatten_optimizer_state_dict = true};

Dict state_of(const ExpertNet& net, torch::optim::Optimizer& optimizer) {
  return {{"model", get_model_state_dict(*net)},
          {"optimizer", get_optimizer_state_dict(*net, optimizer, kFlat)}};
}

void load_state(ExpertNet& net, torch::optim::Optimizer& optimizer, const std::string& folder) {
  auto state = state_of(net, optimizer);
  distributed_checkpoint::load(state, folder);
  set_model_state_dict(*net, state.at("model").as_dict());
  set_optimizer_state_dict(*net, optimizer, state.at("optimizer").as_dict(), kFlat);
}

// Steps of the net of 4 ranks beside those of one process, with equal norms.
void train_shards(ExpertNet& net, torch::optim::Optimizer& optimizer, ExpertNet& whole,
                  torch::optim::Optimizer& reference, int first, int last) {
  const auto sharded = *FSDPModule::find(*net);
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    loss_of(*net, step, get_rank()).backward();
    for (int rank = 0; rank < 4; ++rank) (loss_of(*whole, step, rank) / 4).backward();
    const auto norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.1);
    const auto found = step % 2 == 0 ? clip_grad_norm_(sharded, 0.1) : clip_grad_norm_(*net, 0.1);
    EXPECT_NEAR(found, norm, 1e-5 * norm) << step;
    optimizer.step();
    reference.step();
  }
}

void expect_like(const ExpertNet& net, const ExpertNet& whole) {
  const auto state = get_model_state_dict(*net);
  for (const auto& [name, parameter] : FSDPModule::find(*net)->named_parameters()) {
    const auto expected = whole->named_parameters()[name];
    const auto& own = state.at(name).get_if<ShardedTensor>()->local_shards;
    if (own.empty()) continue;
    const auto rows = expected.narrow(0, own.front().shard_offsets.front(), parameter.size(0));
    EXPECT_LT(relative_difference(parameter, rows), 1e-5) << name;
  }
}

const Scenario experts_in_shards("experts_in_shards", [] {
  const auto context = init({.backend = "shm"});
  const std::string folder = std::getenv("LOCKSTEP_TEST_CHECKPOINT");
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "ep"}});
  const auto turned = init_device_mesh({1, 4}, {.mesh_dim_names = {"dp", "ep"}});
  for (const bool share_memory : {true, false}) {
    SCOPED_TRACE(share_memory);
    ExpertNet whole(std::nullopt), net(mesh["ep"]);
    const auto sharded = shard_experts(net, mesh, share_memory);
    optim::FusedAdamW optimizer(sharded.parameters(), optim::FusedAdamWOptions(1e-2));
    optim::FusedAdamW reference(whole->parameters(), optim::FusedAdamWOptions(1e-2));
    train_shards(net, optimizer, whole, reference, 0, 6);
    expect_like(net, whole);
    distributed_checkpoint::save(state_of(net, optimizer), folder);

    // On another mesh.
    ExpertNet other(turned["ep"]);
    const auto parameters = shard_experts(other, turned, share_memory).parameters();
    optim::FusedAdamW continued(parameters, optim::FusedAdamWOptions(1e-2));
    load_state(other, continued, folder);
    train_shards(other, continued, whole, reference, 6, 10);
    expect_like(other, whole);
  }

  // Experts of different ranks, of which each pair of ranks is in another group of experts.
  ExpertNet net(mesh["ep"]);
  const auto crossed =
      DeviceMesh(torch::tensor({{0, 3}, {1, 2}}, torch::kInt), {.mesh_dim_names = {"a", "b"}});
  EXPECT_THAT(error_of<ArgumentError>([&] { fully_shard(*net->moe->experts, {.mesh = crossed["b"]}); }),
              AllOf(HasSubstr("expert_training_test.cpp"), HasSubstr("is of an expert that rank ")));
  const auto stages = mesh["ep"].get_group();
  const pipelining::PipelineStage stage(net, stages.rank(), 2,
                                        {.group = stages, .data_parallel_group = mesh["dp"].get_group()});
  const auto loss_of = [](const Tensor& x, const Tensor&) { return x.sum(); };
  EXPECT_THAT(error_of<ArgumentError>([&] { pipelining::ScheduleGPipe schedule(stage, 1, loss_of); }),
              HasSubstr("data_parallel_group would average moe.experts."));
});

// Functions for which all ranks have the same parameters, and the way in which fully_shard() takes the net.
const Scenario experts_refused("experts_refused", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  ExpertNet net(mesh);
  const auto own = fmt::format("moe.experts.{}.0.weight is of an expert", 2 * context.rank());
  EXPECT_THAT(error_of<ArgumentError>([&] { fully_shard(*net, {.mesh = mesh}); }),
              AllOf(HasSubstr(own), HasSubstr("ignored_params"),
                    HasSubstr(fmt::format("that rank {} of group", 1 - context.rank())),
                    HasSubstr("call fully_shard(*moe->experts")));
  EXPECT_THAT(
      error_of<ArgumentError>([&] {
        tensor_parallel::parallelize_module(*net, mesh, {{"head", tensor_parallel::RowwiseParallel()}});
      }),
      AllOf(HasSubstr(own), HasSubstr("another dimension")));
  EXPECT_THAT(error_of<DesyncError>([&] { DistributedDataParallel<ExpertNet> ddp(net); }),
              HasSubstr("moe.experts.2.0.weight"));

  // The rest of the net is sharded.
  ExpertNet whole(std::nullopt);
  std::vector<Tensor> experts;
  for (const auto& name : expert_names(*net)) experts.push_back(net->named_parameters()[name]);
  const auto sharded = fully_shard(*net, {.mesh = mesh, .ignored_params = experts});
  EXPECT_THAT(error_of<ArgumentError>([&] { save_pretrained(sharded, "nowhere"); }),
              HasSubstr("moe.experts."));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                set_model_state_dict(sharded, get_model_state_dict(sharded), {.broadcast_from_rank0 = true});
              }),
              HasSubstr("broadcast_from_rank0"));
  torch::optim::SGD optimizer(sharded.parameters(), 0.5), reference(whole->parameters(), 0.5);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    const Tensor loss = loss_of(*net, step, context.rank());
    loss.backward();
    for (int rank = 0; rank < 2; ++rank) {
      const Tensor expected = loss_of(*whole, step, rank);
      if (rank == context.rank()) {
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
      }
      (expected / 2).backward();
    }
    optimizer.step();
    reference.step();
  }
});

TEST(ExpertParallelSharding, RefusesExpertsAndShardsTheRest) {
  expect_all_passed(run_ranks(experts_refused));
}

TEST(ExpertParallelSharding, TrainsOverRanksWithEqualExpertsAndContinuesOnAnotherMesh) {
  const TempFolder folder;
  expect_all_passed(run_ranks(
      experts_in_shards, {.world_size = 4, .env = {{"LOCKSTEP_TEST_CHECKPOINT", folder.path().string()}}}));
}

TEST(ExpertParallelTraining, WithReplicasAsInOneProcess) {
  const TempFolder folder;
  expect_all_passed(
      run_ranks(experts_and_replicas,
                {.world_size = 4, .env = {{"LOCKSTEP_TEST_CHECKPOINT", folder.path().string()}}}));
}

}  // namespace
}  // namespace lockstep::testing
