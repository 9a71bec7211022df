// SPDX-License-Identifier: BSD-3-Clause
// The errors of the survivors when a rank dies, stops or leaves, for every backend.
#include <csignal>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "base/host.h"
#include "comm/group_state.h"
#include "multiprocess/await_failures.h"
#include "multiprocess/backends.h"
#include "node/node_group.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class LostRanks : public testing::EveryBackend {
 protected:
  static std::vector<testing::RankResult> results_of(const testing::Scenario& scenario) {
    const auto& [backend, ranks] = GetParam();
    return testing::run_ranks(
        scenario, {.world_size = ranks, .env = {{testing::kBackendVariable, backend}}, .timeout = 30s});
  }
  // Where a blocking call cannot be ended, the process is.
  static bool can_end_calls() { return std::get<0>(GetParam()) != "mpi"; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, LostRanks, testing::backends_and_ranks({2, 3}), testing::name_of_case);

// Makes calls. If they fail, writes what the error tells a program to stderr.
void make_calls(const std::function<void()>& calls) {
  try {
    calls();
  } catch (const Error& error) {
    std::cerr << fmt::format("about [{}] of {} on {} in {}\n", fmt::join(error.ranks(), ","), error.group(),
                             error.host(), error.call());
    throw;
  }
}

// Until every rank has left the group's first call: a death may end a call that has ended elsewhere.
void await_all(const ProcessGroup& group) {
  const auto ranks = comm::state_of(group).node_group();
  const Deadline deadline(20s);
  for (int rank = 0; rank < ranks->size(); ++rank)
    while (ranks->status(rank).completed.load() < 1 && !deadline.expired()) std::this_thread::yield();
}

const testing::Scenario is_killed("lost: killed between calls", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  context.barrier();
  if (context.rank() == 1) {
    await_all(context.group());
    ::raise(SIGKILL);
  }
  auto x = torch::ones({1000});
  make_calls([&] {
    for (int i = 0; i < 10; ++i) context.group().all_reduce(x);
  });
});

TEST_P(LostRanks, AKilledRankIsNamedOnEverySurvivor) {
  const auto results = results_of(is_killed);
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(
        results[rank].err,
        AllOf(HasSubstr("all_reduce #2 of Float[1000] at lost_ranks_test.cpp:"), HasSubstr("rank 1 (pid "),
              HasSubstr("is dead; it had completed barrier #1 at "), HasSubstr("another rank is gone")));
    if (!can_end_calls()) continue;
    // A survivor may see the end of another one, too.
    EXPECT_THAT(results[rank].err, ContainsRegex("about \\[([0-9],)*1(,[0-9])*\\] of default on " +
                                                 host_name() + " in all_reduce #2 of Float\\[1000\\]"));
  }
}

// All of it is true when the wait begins: rank 1 has refused the call, it is dead, and the limit is over at
// once.
void wait_for_dead_rank(bool has_refused) {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  constexpr std::uint64_t kStep = 7;
  const auto others = comm::state_of(context.group()).node_group();
  context.barrier();
  if (context.rank() == 1) {
    await_all(context.group());
    if (has_refused) others->refuse(kStep, "its data ended", true);
    ::raise(SIGKILL);
  }
  const Deadline deadline(20s);
  while (others->find_dead() < 0 && !deadline.expired()) std::this_thread::yield();
  if (has_refused) others->own_status().scope = kStep;
  context.group().all_reduce_async(torch::ones({1000})).wait(1ms);
}

const testing::Scenario is_dead_and_late("lost: dead and late", [] { wait_for_dead_rank(false); });
const testing::Scenario has_refused_and_died("lost: refused, dead and late",
                                             [] { wait_for_dead_rank(true); });

TEST_P(LostRanks, ARefusalComesBeforeADeathAndADeathBeforeATimeout) {
  for (const auto* scenario : {&is_dead_and_late, &has_refused_and_died}) {
    const auto* const reason = scenario == &is_dead_and_late ? "another rank is gone" : "its data ended";
    const auto results = results_of(*scenario);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == 1) continue;
      EXPECT_EQ(results[rank].exit_code, 1);
      EXPECT_THAT(results[rank].err, AllOf(HasSubstr("all_reduce #"), HasSubstr(reason)));
    }
  }
}

const testing::Scenario is_killed_in_a_call("lost: killed in a call", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  context.barrier();
  auto x = torch::ones({1000});
  if (context.rank() == 1) ::alarm(1);  // ends this process while it waits for rank 0
  if (context.rank() != 0) context.group().all_reduce(x);
  if (context.rank() == 0) {
    auto y = torch::ones({1});
    (void)context.group().recv(y, 1, 7);
  }
});

TEST_P(LostRanks, ARankThatDiesWithinACallIsNamed) {
  const auto results = results_of(is_killed_in_a_call);
  EXPECT_EQ(results[1].signal, SIGALRM);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].err,
                AllOf(HasSubstr("rank 1 (pid "), HasSubstr("and was in all_reduce #2 of Float[1000]")));
  }
}

const testing::Scenario one_stops("lost: stopped", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  context.barrier();
  if (context.rank() == 1) ::raise(SIGSTOP);
  auto x = torch::ones({10});
  make_calls([&] {
    try {
      context.group().all_reduce_async(x).wait(2s);
    } catch (const Error&) {
      testing::await_failures(context.group(), 1);
      throw;
    }
  });
});

TEST_P(LostRanks, AStoppedRankIsNamedAtTheTimeout) {
  const auto& [backend, ranks] = GetParam();
  int stopped = 0;
  const auto results = testing::run_ranks(
      one_stops, {.world_size = ranks,
                  .env = {{testing::kBackendVariable, backend}},
                  .stuck = {1},
                  .while_running = [&](const std::vector<int>& pids) { stopped = pids[1]; }});
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(
        results[rank].err,
        AllOf(HasSubstr("all_reduce #2 of Float[10] at lost_ranks_test.cpp:"),
              HasSubstr("did not finish in time"), HasSubstr("rank 1 (pid " + std::to_string(stopped)),
              HasSubstr("is in none of the group's calls (it has been stopped by a signal")));
    if (!can_end_calls()) continue;
    EXPECT_THAT(results[rank].err, HasSubstr("about [1] of default on " + host_name() + " in all_reduce #2"));
  }
}

const testing::Scenario does_not_come("lost: does not arrive", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  context.group().monitored_barrier();
  if (context.rank() == context.world_size() - 1) {
    ::pause();
  }
  EXPECT_THAT([&] { context.group().monitored_barrier(1s, true); },
              ThrowsMessage<TimeoutError>(
                  AllOf(HasSubstr("barrier #2 at lost_ranks_test.cpp:"),
                        HasSubstr("rank " + std::to_string(context.world_size() - 1) + " (pid "),
                        HasSubstr("is in none of the group's calls"))));
  testing::await_failures(context.group(), context.world_size() - 1);
});

TEST_P(LostRanks, AMonitoredBarrierNamesMissingRanks) {
  const auto& [backend, ranks] = GetParam();
  const auto results = testing::run_ranks(
      does_not_come,
      {.world_size = ranks, .env = {{testing::kBackendVariable, backend}}, .stuck = {ranks - 1}});
  for (int rank = 0; rank < ranks - 1; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << " signal " << result.signal << " " << result.err;
  }
}

const testing::Scenario one_leaves("lost: leaves", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  context.barrier();
  if (context.rank() == 1) throw Error("enough");
  auto x = torch::ones({10});
  context.group().all_reduce(x);
});

TEST_P(LostRanks, ARankThatLeavesEndsTheOthers) {
  const auto results = results_of(one_leaves);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 1);
    if (rank != 1) {
      EXPECT_THAT(results[rank].err, HasSubstr("another rank is gone"));
    }
  }
}

// Rank 1 has one batch fewer.
const testing::Scenario has_uneven_data("lost: uneven data", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  auto x = torch::ones({1000});
  for (int batch = 0; batch < (context.rank() == 1 ? 3 : 4); ++batch) context.group().all_reduce(x);
});

TEST_P(LostRanks, ARankThatFinishesBeforeTheOthersHasUnevenData) {
  const auto results = results_of(has_uneven_data);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, rank == 1 ? 0 : 1);
    if (rank == 1) continue;
    EXPECT_THAT(
        results[rank].err,
        AllOf(HasSubstr("all_reduce #4 of Float[1000] at lost_ranks_test.cpp:"), HasSubstr("rank 1 (pid "),
              HasSubstr("finished after 3 calls. Unless it reports an error, this looks like uneven data"),
              HasSubstr("DistributedDataParallel::join()"), Not(HasSubstr("first error"))));
  }
}

}  // namespace
}  // namespace lockstep
