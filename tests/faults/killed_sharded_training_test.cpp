// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training under fully_shard() is killed; the run continues with the bits of a run without the
// kill.
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "faults/killed_training.h"
#include "support/odd_net.h"

namespace lockstep::testing::killed_sharded_training_test {
namespace {

struct ShardedRun {
  static FSDPModule shard(const OddNet& net) {
    const bool shared = number_of_test("TEST_SHARED") == 1;
    for (const auto& child : net->children_to_shard()) fully_shard(*child, {.share_memory = shared});
    return fully_shard(net.ptr(), {.share_memory = shared});
  }
  void train() {
    torch::manual_seed(static_cast<std::uint64_t>(100 * step + get_rank()));
    optimizer.zero_grad();
    net->forward(torch::randint(11, {2, 4}), step % 3 != 0).backward();
    clip_grad_norm_(sharded, 1.0);
    optimizer.step();
    ++step;
  }
  Dict state() {
    return {{"model", get_model_state_dict(sharded)},
            {"optimizer", get_optimizer_state_dict(sharded, optimizer)},
            {"step", step}};
  }
  void restore(const Dict& state) {
    set_model_state_dict(sharded, state.at("model").as_dict());
    set_optimizer_state_dict(sharded, optimizer, state.at("optimizer").as_dict());
    step = state.at("step").as_int();
  }

  OddNet net;
  FSDPModule sharded = shard(net);
  torch::optim::AdamW optimizer{sharded.parameters(), 1e-2};
  std::int64_t step = 0;
};

const Scenario doomed_training("faults: doomed sharded training", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  ShardedRun run;
  train_until_killed(run);
});

const Scenario resumed_training("faults: resumed sharded training", [] {
  const auto context = init({.backend = "shm"});
  ShardedRun run, expected;
  resume(run);
  train_to_the_end(expected);
  EXPECT_TRUE(equal(run.state(), expected.state()));
});

TEST(KilledShardedTraining, IsNamedAndResumedToTheBit) {
  kill_and_resume(doomed_training, resumed_training, 3, [](int round) {
    return RunOptions{.world_size = 2 + round % 2, .env = {{"TEST_SHARED", round % 3 == 2 ? "0" : "1"}}};
  });
}

}  // namespace
}  // namespace lockstep::testing::killed_sharded_training_test
