// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/runtime/default_group.h>

#include "base/env.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

// Trainings in which a rank is killed at a random point. Every survivor names it, and the run continues from
// the last checkpoint. LOCKSTEP_FAULT_ROUNDS=100 for a long run, LOCKSTEP_FAULT_SEED to see the same kills
// again. A run has train(), state(), restore() and `step`.
namespace lockstep::testing {

constexpr std::int64_t kStepsPerCheckpoint = 7;

inline std::int64_t number_of_test(const char* name) { return *Env().get_int(name); }

inline CheckpointManager manager_of_run() {
  return CheckpointManager(*Env().get("TEST_FOLDER"),
                           {.sync = false, .writing = CheckpointWriting::every_rank});
}

template <class Run>
[[noreturn]] void train_until_killed(Run& run) {
  auto manager = manager_of_run();
  const auto reached = std::make_shared<std::atomic<std::int64_t>>(0);
  if (get_rank() == number_of_test("TEST_VICTIM")) {
    const auto last = number_of_test("TEST_KILL_STEP");
    const std::chrono::microseconds later(number_of_test("TEST_KILL_MICROSECONDS"));
    std::thread([=] {
      reached->wait(0);
      for (auto seen = reached->load(); seen < last; seen = reached->load()) reached->wait(seen);
      std::this_thread::sleep_for(later);
      ::raise(SIGKILL);
    }).detach();
  }
  while (true) {
    run.train();
    // The victim may reach steps that the run without the kill does not have.
    const bool saves = run.step % kStepsPerCheckpoint == 0 && run.step <= number_of_test("TEST_STEPS");
    if (saves) manager.save(run.step, run.state());
    reached->store(run.step);
    reached->notify_all();
  }
}

template <class Run>
void train_to_the_end(Run& run) {
  while (run.step < number_of_test("TEST_STEPS")) run.train();
}

// Loads the last checkpoint, and trains to the end of the run.
template <class Run>
void resume(Run& run) {
  auto state = run.state();
  const auto last = manager_of_run().load_latest(state);
  if (last) run.restore(state);
  EXPECT_EQ(run.step, last ? last->step : 0);
  // The victim may complete further steps, and their checkpoint, before the signal ends it.
  const auto killed_after = number_of_test("TEST_KILL_STEP");
  EXPECT_GE(run.step, killed_after - killed_after % kStepsPerCheckpoint);
  train_to_the_end(run);
}

// `doomed` ends in train_until_killed(); `resumed` calls resume().
inline void kill_and_resume(const Scenario& doomed, const Scenario& resumed, int rounds,
                            const std::function<RunOptions(int round)>& options_of) {
  const char* wanted = std::getenv("LOCKSTEP_FAULT_ROUNDS");
  if (wanted != nullptr) rounds = std::atoi(wanted);
  const unsigned steps = wanted != nullptr ? 200 : 30;
  // A round in the suite resumes from a checkpoint.
  const unsigned first = wanted != nullptr ? 1 : kStepsPerCheckpoint + 1;
  const auto seed = Env().get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  std::cout << "LOCKSTEP_FAULT_SEED=" << seed << std::endl;
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
    const TempFolder folder;
    auto options = options_of(round);
    options.timeout = std::chrono::minutes(2);  // eight ranks on two cores, beside other tests
    const auto victim = random() % static_cast<unsigned>(options.world_size);
    options.env["TEST_FOLDER"] = (folder / "run").string();
    options.env["TEST_STEPS"] = std::to_string(steps);
    options.env["TEST_VICTIM"] = std::to_string(victim);
    options.env["TEST_KILL_STEP"] = std::to_string(first + random() % (steps - first));
    options.env["TEST_KILL_MICROSECONDS"] = std::to_string(random() % 8000);
    const auto results = run_ranks(doomed, options);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == victim) continue;
      SCOPED_TRACE(::testing::Message() << "LOCKSTEP_FAULT_SEED=" << seed << ", round " << round << ", rank "
                                        << rank << ", killed at step " << options.env["TEST_KILL_STEP"]);
      EXPECT_EQ(results[rank].exit_code, 1) << results[rank].err;
      const auto name = "rank " + std::to_string(victim) + " (pid ";
      EXPECT_THAT(results[rank].err, ::testing::HasSubstr(name));
      // The second is of a rank that shares no group with the victim.
      EXPECT_THAT(results[rank].err, ::testing::AnyOf(::testing::HasSubstr("is dead"),
                                                      ::testing::HasSubstr("Dead in this job: ")));
    }
    EXPECT_EQ(results[victim].signal, SIGKILL) << results[victim].err;
    expect_all_passed(run_ranks(resumed, options));
  }
}

}  // namespace lockstep::testing
