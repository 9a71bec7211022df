// SPDX-License-Identifier: BSD-3-Clause
// Groups that are formed again while ranks die, calls are in progress or threads compete.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "multiprocess/reconfigure.h"
#include "support/error_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

class ReconfigureDeaths : public testing::ReconfigureTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ReconfigureDeaths, ::testing::Values("shm", "hierarchical"));

// -- deaths at any time

// Where the members of a forming say that they are there.
std::string member_key(std::int64_t uuid, int rank) {
  return fmt::format("lockstep/default/0/group/default/reconfigure/{}/member/{}", uuid, rank);
}

// Process TEST_VICTIM dies before the others form the group, while they wait for it, or when they connect.
// The timeout is longer than that of run_ranks(), so a death that is not noticed fails the test.
const testing::Scenario dies_in_forming("reconfigure: a member dies", [] {
  const auto victim = static_cast<int>(*Env().get_int("TEST_VICTIM"));
  const auto moment = Env().get("TEST_MOMENT").value();
  const auto context = init_among(4);
  const auto memory = registered(context.group(), 50'000);
  const auto handles = handles_of({0, 1, 2, 3}, context.group(), 1);
  wait_for({0, 1, 2, 3}, "handles");
  std::vector<int> survivors{0, 1, 2, 3};
  std::erase(survivors, victim);
  if (own_process() == victim) {
    const auto store = shared_store();
    for (const int survivor : survivors)
      if (moment != "before") store->wait({member_key(1, survivor)}, 30s);
    if (moment == "connecting") store->set(member_key(1, victim), "");
    ::raise(SIGKILL);
  }
  const auto error = error_of<RendezvousError>(
      [&] { context.reconfigure({.uuid = 1, .handles = handles, .timeout = 100s}); });
  EXPECT_THAT(error, HasSubstr(fmt::format("rank {} (pid ", victim)));
  EXPECT_THAT(error, HasSubstr("is dead"));
  EXPECT_THAT(error,
              HasSubstr("new uuid, the same on all members, and without the handles of lost processes"));
  form(context, survivors, 2);
  expect_sums(context.group(), memory);
});

TEST_P(ReconfigureDeaths, NamesAMemberThatDies) {
  for (const auto& [victim, moment] : {std::pair(3, "before"), std::pair(1, "waiting"),
                                       std::pair(0, "connecting"), std::pair(2, "connecting")})
    run_with_victims(dies_in_forming, 4, {victim},
                     {{"TEST_VICTIM", std::to_string(victim)}, {"TEST_MOMENT", moment}});
}

constexpr int kFormings = 400;

// One rank dies while all of them form the group again and again.
const testing::Scenario dies_meanwhile("reconfigure: dies meanwhile", [] {
  const auto context = init_among(4);
  const auto memory = registered(context.group(), 50'000);
  std::jthread killer;
  if (own_process() == 2) {
    std::mt19937 random(std::random_device{}());
    const auto delay = std::chrono::microseconds(random() % 300'000);
    killer = std::jthread([delay] {
      std::this_thread::sleep_for(delay);
      ::raise(SIGKILL);
    });
  }
  try {
    for (int round = 0; round < kFormings; ++round) {
      const auto handles = handles_of({0, 1, 2, 3}, context.group(), round, 1s);
      context.reconfigure({.uuid = round, .handles = handles, .timeout = 100s});
      context.group().all_reduce(memory);
    }
    FAIL() << "no rank died";
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2 (pid "));
  } catch (const std::exception&) {
    // of a call, or of the store, which waits for the handle of the dead rank
  }
  form(context, {0, 1, 3}, kFormings);
  expect_sums(context.group(), memory);
});

TEST_P(ReconfigureDeaths, SurvivesADeathAtAnyTime) {
  for (int round = 0; round < static_cast<int>(Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(1)); ++round)
    run_with_victims(dies_meanwhile, 4, {2});
}

// -- at any time

// While a thread of each rank but one waits in a call, after an abort, and by two threads at once.
const testing::Scenario disturbs("reconfigure: disturbed", [] {
  const auto context = init_among(4);
  const auto memory = registered(context.group(), 200'000);
  const auto old = context.group();
  {
    std::jthread waiting;
    if (own_process() != 1) {
      waiting = std::jthread([&] { EXPECT_THROW(old.all_reduce(memory), Error); });
      while (old.recent_calls().empty()) std::this_thread::yield();
    }
    form(context, {3, 1, 2, 0}, 1);
  }
  expect_sums(context.group(), memory);

  wait_for({0, 1, 2, 3}, "sums");
  context.group().backend()->abort();
  EXPECT_THROW(context.barrier(), Error);
  form(context, {0, 1, 2, 3}, 2);
  expect_sums(context.group(), memory);

  const auto handles = handles_of({0, 1, 2, 3}, context.group(), 3);
  std::atomic<int> successes = 0;
  {
    std::vector<std::jthread> threads;
    for (const int uuid : {3, 4}) {
      threads.emplace_back([&, uuid] {
        try {
          context.reconfigure({.uuid = uuid, .handles = handles, .timeout = 500ms});
          ++successes;
        } catch (const Error&) {
          // The other thread has formed the group, or other ranks wait for another uuid.
        }
      });
    }
  }
  EXPECT_LE(successes, 1);
  form(context, {0, 1, 2, 3}, 5);
  expect_sums(context.group(), memory);
});

TEST_P(ReconfigureDeaths, IsPossibleDuringCallsAndAfterAnAbort) { run(disturbs, 4); }

}  // namespace
}  // namespace lockstep
