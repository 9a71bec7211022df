// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training under fully_shard() is killed at a random point: every survivor names it,
// and the run continues from the last checkpoint with the bits of a run without the kill.
// LOCKSTEP_FAULT_ROUNDS=100 for a long run.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/odd_net.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

std::int64_t steps_of_run() { return *Env().get_int("TEST_STEPS"); }
constexpr std::int64_t kStepsPerCheckpoint = 7;

struct ShardedRun {
  explicit ShardedRun(bool shared) : sharded(shard(net, shared)), optimizer(sharded.parameters(), 1e-2) {}

  static FSDPModule shard(const OddNet& net, bool shared) {
    for (const auto& child : net->children_to_shard()) fully_shard(*child, {.share_memory = shared});
    return fully_shard(*net, {.share_memory = shared});
  }
  void train(int rank) {
    torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
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
  FSDPModule sharded;
  torch::optim::AdamW optimizer;
  std::int64_t step = 0;
};

CheckpointManager manager_of_run() {
  return CheckpointManager(*Env().get("TEST_FOLDER"),
                           {.sync = false, .writing = CheckpointWriting::every_rank});
}

bool is_shared() { return *Env().get_int("TEST_SHARED") == 1; }

const Scenario doomed_training("faults: doomed sharded training", [] {
  const Env env;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  ShardedRun run(is_shared());
  auto manager = manager_of_run();
  const auto reached = std::make_shared<std::atomic<std::int64_t>>(0);
  if (context.rank() == *env.get_int("TEST_VICTIM")) {
    const auto last = *env.get_int("TEST_KILL_STEP"), microseconds = *env.get_int("TEST_KILL_MICROSECONDS");
    std::thread([=] {
      reached->wait(0);
      for (auto seen = reached->load(); seen < last; seen = reached->load()) reached->wait(seen);
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      ::raise(SIGKILL);
    }).detach();
  }
  while (true) {
    run.train(context.rank());
    if (run.step % kStepsPerCheckpoint == 0) manager.save(run.step, run.state());
    reached->store(run.step);
    reached->notify_all();
  }
});

const Scenario resumed_training("faults: resumed sharded training", [] {
  const auto context = init({.backend = "shm"});
  ShardedRun run(is_shared()), expected(is_shared());
  auto manager = manager_of_run();
  auto state = run.state();
  const auto last = manager.load_latest(state);
  if (last) run.restore(state);
  EXPECT_EQ(run.step, last ? last->step : 0);
  // The victim may complete further steps, and their checkpoint, before the signal ends it.
  const auto killed_after = *Env().get_int("TEST_KILL_STEP");
  EXPECT_GE(run.step, killed_after - killed_after % kStepsPerCheckpoint);
  for (auto* each : {&run, &expected}) {
    while (each->step < steps_of_run()) each->train(context.rank());
  }
  EXPECT_TRUE(equal(run.state(), expected.state()));
});

TEST(KilledShardedTraining, IsNamedAndResumedToTheBit) {
  const char* wanted = std::getenv("LOCKSTEP_FAULT_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 3;
  const unsigned steps = wanted != nullptr ? 200 : 60;
  std::mt19937 random(static_cast<unsigned>(rounds));
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const TempFolder folder;
    const int size = 2 + round % 2;
    const auto victim = random() % static_cast<unsigned>(size);
    RunOptions options{.world_size = size,
                       .env = {{"TEST_FOLDER", (folder / "run").string()},
                               {"TEST_SHARED", round % 3 == 2 ? "0" : "1"},
                               {"TEST_STEPS", std::to_string(steps)},
                               {"TEST_VICTIM", std::to_string(victim)},
                               {"TEST_KILL_STEP", std::to_string(1 + random() % (steps - 1))},
                               {"TEST_KILL_MICROSECONDS", std::to_string(random() % 8000)}}};
    const auto results = run_ranks(doomed_training, options);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == victim) continue;
      SCOPED_TRACE(::testing::Message() << "round " << round << ", rank " << rank << ", killed at step "
                                        << options.env["TEST_KILL_STEP"]);
      EXPECT_EQ(results[rank].exit_code, 1) << results[rank].err;
      EXPECT_THAT(results[rank].err, HasSubstr("rank " + std::to_string(victim) + " (pid "));
      EXPECT_THAT(results[rank].err, HasSubstr("is dead"));
    }
    EXPECT_EQ(results[victim].signal, SIGKILL) << results[victim].err;
    expect_all_passed(run_ranks(resumed_training, options));
  }
}

}  // namespace
}  // namespace lockstep::testing
