// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() of modules that parallelize_module() changed, beside one process; their checkpoints on other
// meshes.
#include <cstdlib>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/error_of.h"
#include "support/parallel_net.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor_parallel;
namespace F = torch::nn::functional;
using at::Tensor;
using ::testing::HasSubstr;

ParallelNet make_net(int seed = 7) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  ParallelNet net;
  net->to(torch::kDouble);
  return net;
}

using Adam = torch::optim::AdamW;

// One process with the batches of all replicas.
struct OneProcess {
  explicit OneProcess(int data_parallel_ranks) : replicas(data_parallel_ranks) {}

  // The loss of one replica.
  double step(int number, int own_replica) {
    optimizer.zero_grad();
    double own = 0;
    for (int replica = 0; replica < replicas; ++replica) {
      const auto [tokens, target] = draw_tokens(number, replica);
      const auto loss = F::cross_entropy(net->forward(tokens).flatten(0, 1), target);
      (loss / replicas).backward();
      if (replica == own_replica) own = loss.item<double>();
    }
    norm = torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
    return own;
  }

  int replicas;
  ParallelNet net = make_net();
  Adam optimizer{net->parameters(), 1e-2};
  double norm = 0;
};

// A rank of a mesh with dimensions "dp" and "tp".
struct Rank {
  Rank(DeviceMesh ranks, bool sequence, const FullyShardOptions& options)
      : mesh(std::move(ranks)), is_sequence(sequence) {
    tp::parallelize_module(*net, mesh["tp"], sequence ? sequence_plan() : tensor_plan());
    auto of_mesh = options;
    of_mesh.mesh = mesh["dp"];
    for (const auto& layer : *net->layers) fully_shard(*layer, of_mesh);
    sharded = fully_shard(*net, of_mesh);
    optimizer.emplace(sharded.parameters(), 1e-2);
  }

  double step(int number) {
    const auto [tokens, target] = draw_tokens(number, mesh.get_local_rank("dp"));
    optimizer->zero_grad();
    const auto logits = net->forward(tokens).flatten(0, 1);
    const auto& freed = net->layers[0]->as<ParallelBlock>()->fc1->weight;
    EXPECT_EQ(freed.storage().nbytes() == 0, !sharded.shares_memory()) << "between forward and backward";
    const auto loss =
        is_sequence ? tp::loss_parallel(logits, target, mesh["tp"]) : F::cross_entropy(logits, target);
    loss.backward();
    norm = clip_grad_norm_(sharded, 0.5);
    optimizer->step();
    return loss.item<double>();
  }

  Dict state() {
    return {{"model", get_model_state_dict(sharded)},
            {"optimizer", get_optimizer_state_dict(sharded, *optimizer)}};
  }

  DeviceMesh mesh;
  bool is_sequence;
  ParallelNet net = make_net(7 + mesh.get_local_rank("tp"));
  FSDPModule sharded;
  std::optional<Adam> optimizer;
  double norm = 0;
};

void train_beside(Rank& rank, OneProcess& expected, int first, int last) {
  for (int step = first; step < last; ++step) {
    SCOPED_TRACE(step);
    const auto own = expected.step(step, rank.mesh.get_local_rank("dp"));
    ASSERT_NEAR(rank.step(step), own, 1e-6);
    ASSERT_NEAR(rank.norm, expected.norm, 1e-6);
  }
  const auto full = get_model_state_dict(rank.sharded, {.full_state_dict = true});
  for (const auto& item : expected.net->named_parameters())
    EXPECT_TRUE(full.at(item.key()).as_tensor().allclose(item.value().detach(), 0, 1e-6)) << item.key();
}

// Another number of ranks in each dimension, and one process, go on where the mesh was.
void go_on_elsewhere(const Rank& from, OneProcess& expected, const std::string& folder) {
  const auto tokens = draw_tokens(50, 0).first;
  const auto outputs = expected.net->forward(tokens);
  for (const auto& [dp_ranks, tp_ranks] : {std::pair{1, 4}, {4, 1}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("{} x {}", dp_ranks, tp_ranks));
    const auto mesh = init_device_mesh({dp_ranks, tp_ranks}, {.mesh_dim_names = {"dp", "tp"}});
    Rank other(mesh, !from.is_sequence, {.share_memory = !from.sharded.shares_memory()});
    auto state = other.state();
    distributed_checkpoint::load(state, folder);
    set_model_state_dict(other.sharded, state.at("model").as_dict());
    set_optimizer_state_dict(other.sharded, *other.optimizer, state.at("optimizer").as_dict());
    OneProcess continued(dp_ranks);
    load_state_dict(continued.net, state_dict(expected.net));
    load_state_dict(continued.optimizer, state_dict(expected.optimizer));
    train_beside(other, continued, 60, 62);
  }
  auto alone = make_net(9);
  load_state_dict(alone, distributed_checkpoint::load(folder).at("model").as_dict());
  EXPECT_TRUE(alone->forward(tokens).allclose(outputs, 0, 1e-6));
}

// Of some matrices tensor parallel cuts the columns, too.
std::optional<tensor::Placement> columns_of_matrices(const Tensor& parameter) {
  return parameter.dim() == 2 ? std::optional(tensor::Shard(1)) : std::nullopt;
}

const Scenario shards_of_parts("fully_shard() after parallelize_module()", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "tp"}});
  for (const bool sequence : {false, true}) {
    for (const bool shared : {false, true}) {
      SCOPED_TRACE(fmt::format("sequence {}, shared {}", sequence, shared));
      OneProcess expected(2);
      FullyShardOptions options{.share_memory = shared};
      if (sequence) options.shard_placement_fn = columns_of_matrices;
      Rank rank(mesh, sequence, options);
      train_beside(rank, expected, 0, 4);
      if (sequence != shared || ::testing::Test::HasFailure()) continue;
      const auto folder = fmt::format("{}/{}", std::getenv("LOCKSTEP_TEST_CHECKPOINT"), shared ? 1 : 0);
      distributed_checkpoint::save(rank.state(), folder);
      go_on_elsewhere(rank, expected, folder);
    }
  }
});

TEST(ShardedTensorParallel, TrainsAsOneProcessAndGoesOnOnOtherMeshes) {
  const TempFolder folder;
  expect_all_passed(run_ranks(
      shards_of_parts, {.world_size = 4, .env = {{"LOCKSTEP_TEST_CHECKPOINT", folder.path().string()}}}));
}

}  // namespace
}  // namespace lockstep::testing
