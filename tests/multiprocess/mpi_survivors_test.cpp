// SPDX-License-Identifier: BSD-3-Clause
// What the survivors of a rank get where MPI survives lost ranks. Not part of ctest: `scripts/nightly.sh mpi`
// runs them with an MPI that does.
#include <array>
#include <csignal>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "multiprocess/backends.h"
#include "support/error_of.h"
#include "support/mpi_ranks.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kVictim = 1;
constexpr const char* kFolder = "LOCKSTEP_TEST_FOLDER";
constexpr const char* kNextFile = "next";

Context join(std::chrono::milliseconds timeout = 60s) {
  return init({.backend = testing::backend_under_test(), .timeout = timeout});
}

// A moment after the others have said that they are about to call.
[[noreturn]] void die_while_they_call(const ProcessGroup& group) {
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != kVictim) (void)group.recv(torch::zeros({1}), rank);
  }
  std::this_thread::sleep_for(200ms);  // the errors are the same without it, but from another place
  ::raise(SIGKILL);
  std::abort();
}

// The call's error is one like any other: it names the call and the lost rank, and the rank continues.
void expect_loss(const Context& context, const std::string& call, const std::function<void()>& make) {
  const auto who = "rank " + std::to_string(context.rank()) + " of 4 (group default, mpi)";
  const auto where = call + " at mpi_survivors_test.cpp:";
  try {
    make();
    ADD_FAILURE() << call << " did not fail";
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(who), HasSubstr(where),
                                    HasSubstr("another rank is gone: rank 1"), HasSubstr(" died")));
  }
  std::cout << "continues" << std::endl;
}

const testing::Scenario in_a_blocking_call("mpi survivors: blocking", [] {
  const auto context = join();
  const auto& group = context.group();
  if (context.rank() == kVictim) die_while_they_call(group);
  const auto x = torch::ones({1000});
  group.send(torch::ones({1}), kVictim);
  expect_loss(context, "all_reduce #2 of Float[1000]", [&] { group.all_reduce(x); });
  expect_loss(context, "all_reduce #3 of Float[1000]", [&] { group.all_reduce(x); });
});

const testing::Scenario in_an_asynchronous_call("mpi survivors: asynchronous", [] {
  const auto context = join();
  const auto& group = context.group();
  if (context.rank() == kVictim) die_while_they_call(group);
  auto first = group.all_reduce_async(torch::ones({1000}));
  auto second = group.all_reduce_async(torch::ones({1'000'000}));
  group.send(torch::ones({1}), kVictim);
  expect_loss(context, "all_reduce #1 of Float[1000]", [&] { first.wait(); });
  expect_loss(context, "all_reduce #2 of Float[1000000]", [&] { second.wait(); });
});

// Each waits for the next one, and only rank 3 for the one that dies.
const testing::Scenario waits_for_a_survivor("mpi survivors: waits for a survivor", [] {
  static constexpr std::array kWaitsFor{2, -1, 3, kVictim};
  const auto context = join();
  const auto& group = context.group();
  if (context.rank() == kVictim) die_while_they_call(group);
  const auto word = torch::ones({1});
  group.send(word, kVictim);
  const int peer = kWaitsFor.at(static_cast<std::size_t>(context.rank()));
  expect_loss(context, "recv #2 of Float[1]", [&] { (void)group.recv(word, peer, 5); });
});

const testing::Scenario at_a_monitored_barrier("mpi survivors: monitored barrier", [] {
  const auto context = join();
  const auto& group = context.group();
  if (context.rank() == kVictim) die_while_they_call(group);
  group.send(torch::ones({1}), kVictim);
  expect_loss(context, "barrier #2", [&] { group.monitored_barrier(30s); });
});

// The process that has lost a rank uses MPI again, with those that are left.
const testing::Scenario goes_on("mpi survivors: a new group", [] {
  int rank = -1;
  {
    const auto context = join();
    const auto& group = context.group();
    rank = context.rank();
    if (rank == kVictim) die_while_they_call(group);
    group.send(torch::ones({1}), kVictim);
    expect_loss(context, "barrier #2", [&] { group.barrier(); });
  }
  const auto file = "file://" + Env().get(kFolder).value() + "/" + kNextFile;
  const auto context =
      init({.backend = "mpi", .init_method = file, .world_size = 3, .rank = rank - (rank > kVictim ? 1 : 0)});
  const auto x = torch::ones({1000});
  for (int i = 0; i < 3; ++i) context.group().all_reduce(x);
  EXPECT_EQ(x[999].item<float>(), 27);
  const auto pair = context.new_group({0, 2});
  if (pair) pair.barrier();
  std::cout << "continues" << std::endl;
});

// Rank 0 fails with rank 1, and ranks 2 and 3 end well, without waiting for them.
const testing::Scenario parts("mpi survivors: parts", [] {
  const auto context = join();
  const auto low = context.new_group({0, 1});
  const auto high = context.new_group({2, 3});
  context.barrier();
  if (context.rank() == kVictim) ::raise(SIGKILL);
  const auto x = torch::ones({1000});
  if (low) low.all_reduce(x);
  for (int i = 0; i < 1000; ++i) high.all_reduce(x);
  std::cout << "continues" << std::endl;
});

const testing::Scenario one_leaves("mpi survivors: leaves", [] {
  const auto context = join();
  context.barrier();
  if (context.rank() == kVictim) throw Error("enough");
  context.group().all_reduce(torch::ones({10}));
});

class MpiSurvivors : public ::testing::TestWithParam<std::tuple<bool, const char*>> {
 protected:
  testing::MpiRun run(const std::string& scenario) {
    const auto [on_two_hosts, threads] = GetParam();
    testing::RunOptions options{.world_size = kRanks,
                                .env = {{testing::kBackendVariable, "mpi"},
                                        {"LOCKSTEP_MPI_THREADS", threads},
                                        {kFolder, folder_.path().string()}}};
    for (int rank = 0; on_two_hosts && rank < kRanks; ++rank)
      options.rank_env[rank] = {{"LOCKSTEP_HOST_ID", rank < 2 ? "0" : "1"}};
    return testing::run_mpi_ranks({scenario}, options);
  }

  // The job ends as well as its survivors do.
  void expect_that_survivors_continue(const std::string& scenario) {
    const auto result = run(scenario);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& [code, signal, timed_out, out, err] = result.ranks[static_cast<std::size_t>(rank)];
      if (rank == kVictim) {
        EXPECT_EQ(code, -1);
      } else {
        EXPECT_EQ(code, 0) << "rank " << rank << ": " << out << err;
        EXPECT_THAT(out, HasSubstr("continues"));
      }
    }
  }

 private:
  testing::TempFolder folder_;
};
// Ranks of several hosts learn of a death from MPI alone.
INSTANTIATE_TEST_SUITE_P(Hosts, MpiSurvivors,
                         ::testing::Combine(::testing::Bool(), ::testing::Values("multiple", "serialized")),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param) ? "Two" : "One") +
                                  std::get<1>(one.param);
                         });

TEST_P(MpiSurvivors, LeaveABlockingCall) { expect_that_survivors_continue("mpi survivors: blocking"); }
TEST_P(MpiSurvivors, LeaveAnAsynchronousCall) {
  expect_that_survivors_continue("mpi survivors: asynchronous");
}
TEST_P(MpiSurvivors, LeaveAReceiveFromAnotherSurvivor) {
  expect_that_survivors_continue("mpi survivors: waits for a survivor");
}
TEST_P(MpiSurvivors, LeaveAMonitoredBarrier) {
  expect_that_survivors_continue("mpi survivors: monitored barrier");
}
TEST_P(MpiSurvivors, MakeANewGroup) { expect_that_survivors_continue("mpi survivors: a new group"); }

TEST_P(MpiSurvivors, EndWithTheirOwnExitCodes) {
  const auto result = run("mpi survivors: parts");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.ranks[0].exit_code, 1);
  EXPECT_THAT(result.ranks[0].err, AllOf(HasSubstr("another rank is gone: rank 1"), HasSubstr("died")));
  for (const std::size_t rank : {2U, 3U}) {
    EXPECT_EQ(result.ranks[rank].exit_code, 0) << result.ranks[rank].err;
    EXPECT_THAT(result.ranks[rank].out, HasSubstr("continues"));
  }
}

TEST_P(MpiSurvivors, EndIfARankLeavesWithAnError) {
  const auto result = run("mpi survivors: leaves");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& [code, signal, timed_out, out, err] = result.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(code, 1);
    EXPECT_THAT(err, HasSubstr(rank == kVictim ? "enough" : "another rank is gone"));
  }
}

// Lanes between the hosts, some of which have lost no rank.
TEST(MpiSurvivorsBetweenHosts, LeaveAllLanes) {
  testing::RunOptions options{
      .world_size = kRanks,
      .env = {{testing::kBackendVariable, "hierarchical"}, {"LOCKSTEP_HIERARCHICAL_NETWORK", "mpi"}}};
  for (int rank = 0; rank < kRanks; ++rank)
    options.rank_env[rank] = {{"LOCKSTEP_HOST_ID", rank < 2 ? "0" : "1"}};
  const auto result = testing::run_mpi_ranks({"mpi survivors: hierarchical"}, options);
  for (const std::size_t rank : {0U, 2U, 3U}) {
    EXPECT_EQ(result.ranks[rank].exit_code, 0) << result.ranks[rank].out << result.ranks[rank].err;
  }
}

const testing::Scenario over_hosts("mpi survivors: hierarchical", [] {
  const auto context = join();
  context.barrier();
  if (context.rank() == kVictim) ::raise(SIGKILL);
  const auto x = torch::ones({100'000});
  const auto text = error_of([&] {
    for (int i = 0; i < 10; ++i) context.group().all_reduce(x);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("all_reduce #"), HasSubstr("at mpi_survivors_test.cpp:"),
                          HasSubstr("another rank is gone")));
});

}  // namespace
}  // namespace lockstep
