// SPDX-License-Identifier: BSD-3-Clause
// The messages that the remaining or new ranks get, and that they can continue in the same process.
#include <csignal>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <regex>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "base/shared_memory.h"
#include "multiprocess/backends.h"
#include "support/error_of.h"
#include "support/temp_folder.h"
#include "support/threads.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// -- a death, and life after it

std::size_t entries_in(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:lockstep") != std::string::npos;
  return count;
}

constexpr int kRounds = 5;

void meet_and_sum(const std::string& file, int rank, int size, int victim) {
  const auto context = init({.backend = testing::backend_under_test(),
                             .init_method = "file://" + Env().get("TEST_FOLDER").value() + "/" + file,
                             .timeout = 50s,
                             .world_size = size,
                             .rank = rank});
  auto x = torch::full({50'000}, rank + 1.0F);
  context.group().all_reduce(x);
  EXPECT_EQ(x[49'999].item<float>(), static_cast<float>(size * (size + 1)) / 2);
  if (rank == victim) ::kill(::getpid(), SIGKILL);
  if (victim < 0) return;
  while (true) context.group().all_reduce(x);
}

// Ranks 0 and 1 of every round are the same processes; the third of each round dies.
const testing::Scenario goes_on("survivors: continue", [] {
  const auto process = static_cast<int>(*Env().get_int("RANK"));
  if (process >= 2) {
    meet_and_sum("three" + std::to_string(process - 2), 2, 3, 2);
    return;
  }
  std::vector<std::size_t> before;
  std::vector<std::size_t> after;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_THAT([&] { meet_and_sum("three" + std::to_string(round), process, 3, 2); },
                ThrowsMessage<PeerLost>(AllOf(HasSubstr("rank 2 (pid "), HasSubstr("is dead"))));
    meet_and_sum("two" + std::to_string(round), process, 2, -1);
    after = {entries_in("/proc/self/fd"), testing::living_threads(), shared_mappings()};
    if (round == 1) before = after;
  }
  EXPECT_EQ(before, after) << "descriptors, threads, mappings";
});

class Survivors : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Rounds, Survivors, testing::backends_and_ranks({2 + kRounds}),
                         testing::name_of_case);

TEST_P(Survivors, MakeANewGroupInTheSameProcess) {
  const auto& [backend, processes] = GetParam();
  const testing::TempFolder folder;
  const auto results = testing::run_ranks(goes_on, {.world_size = processes,
                                                    .env = {{testing::kBackendVariable, backend},
                                                            {"TEST_FOLDER", folder.path().string()},
                                                            {"LOCAL_RANK", ""},
                                                            {"LOCAL_WORLD_SIZE", ""}}});
  for (int rank = 0; rank < processes; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    if (rank < 2) {
      EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    } else {
      EXPECT_EQ(result.signal, SIGKILL) << result.err;
    }
  }
}

// -- a rank that is stuck

// What the report says of it.
pid_t pid_of_rank_1(const std::string& report) {
  std::smatch found;
  return std::regex_search(report, found, std::regex("rank 1 \\(pid (\\d+) on")) ? std::stoi(found[1]) : 0;
}

// Rank 1 makes no call, in syscall(), until rank 0 has written its report; rank 2 has called before rank 0
// does.
const testing::Scenario is_stuck("survivors: stuck", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 50s});
  const auto& group = context.group();
  group.barrier();
  auto x = torch::ones({10});
  auto token = torch::ones({1});
  if (context.rank() == 1) {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // if only parents may inspect processes
    auto* const function = ::dlsym(RTLD_DEFAULT, "syscall");
    Dl_info library{};
    ::dladdr(function, &library);
    std::cerr << "syscall is at " << static_cast<char*>(function) - static_cast<char*>(library.dli_fbase)
              << std::endl;
    ::syscall(SYS_pause);
  }
  if (context.rank() == 2) {
    auto work = group.all_reduce_async(x);
    group.send(token, 0);
    work.wait();
  }
  (void)group.recv(token, 2);
  auto work = group.all_reduce_async(x);
  try {
    work.wait(2s);
  } catch (const std::exception& error) {
    if (const auto pid = pid_of_rank_1(error.what()); pid > 0) ::kill(pid, SIGKILL);
    throw;
  }
});

class HungRank : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Ranks, HungRank, testing::backends_and_ranks({3}), testing::name_of_case);

TEST_P(HungRank, TheReportShowsItsLocationAndTheWaitOfOtherRanks) {
  const auto& [backend, ranks] = GetParam();
  const auto results =
      testing::run_ranks(is_stuck, {.world_size = ranks, .env = {{testing::kBackendVariable, backend}}});
  const auto& report = results[0].err;
  EXPECT_EQ(results[0].exit_code, 1);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      report, found,
      std::regex(
          "rank 2 \\(pid \\d+ on \\S+\\) has waited (\\d+\\.\\d) s in all_reduce #2 of Float\\[10\\] at "
          "survivors_test.cpp:\\d+ \\(its thread .*\\); it had completed")))
      << report;
  EXPECT_GE(std::stod(found[1]), 1.9);
  ASSERT_TRUE(std::regex_search(
      report, found,
      std::regex("rank 1 \\(pid \\d+ on \\S+\\) is in none of the group's calls \\(its thread sleeps.*, "
                 "called from libc[^ ]*\\+0x([0-9a-f]+)\\); it had completed barrier #1")))
      << report;
  const auto place = std::stoul(found[1], nullptr, 16);
  ASSERT_TRUE(std::regex_search(results[1].err, found, std::regex("syscall is at (\\d+)")));
  EXPECT_GT(place, std::stoul(found[1]));
  EXPECT_LT(place, std::stoul(found[1]) + 256);
}

// -- a barrier to which two of four do not come

const testing::Scenario two_are_missing("survivors: two missing", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 50s});
  const auto other = context.new_group({0, 1, 2, 3});
  context.barrier();
  const bool is_gloo = testing::backend_under_test() == "gloo";
  for (const bool wait_all_ranks : {false, true}) {
    const auto group = context.new_group({0, 1, 2, 3});
    if (context.rank() < 2) {
      const auto text = error_of([&] { group.monitored_barrier(1s, wait_all_ranks); });
      const auto headline = text.substr(0, text.find('\n'));
      EXPECT_THAT(
          text,
          AllOf(HasSubstr("did not finish in time"), HasSubstr("barrier #1 at survivors_test.cpp:"),
                HasSubstr("\n  rank 2 (global rank 2, pid "), HasSubstr("\n  rank 3 (global rank 3, pid "),
                HasSubstr("is in none of the group's calls")));
      if (is_gloo && context.rank() == 0) {
        EXPECT_THAT(headline, HasSubstr(wait_all_ranks ? "Ranks 2, 3 failed" : "Rank 2 failed"));
      }
      if (!is_gloo) {
        EXPECT_THAT(headline, ::testing::AnyOf(AllOf(HasSubstr("rank 2 (global rank 2, pid "),
                                                     HasSubstr("rank 3 (global rank 3, pid "),
                                                     HasSubstr("were not there")),
                                               HasSubstr("gave up waiting")));
      }
    }
    other.barrier();
  }
});

class TwoMissing : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Ranks, TwoMissing, testing::backends_and_ranks({4}), testing::name_of_case);
TEST_P(TwoMissing, AreNamedByAMonitoredBarrier) { run(two_are_missing); }

// -- calls that differ

using CallOf = std::function<void(const ProcessGroup&)>;

// Both sides' calls with their source lines are in every rank's error, and nothing has been changed.
void expect_both_sides(const Context& context, const CallOf& here, const CallOf& there) {
  const auto all = std::vector<int>{0, 1};
  const auto witness = context.new_group(all);
  const auto group = context.new_group(all);
  const auto text = error_of([&] { (context.rank() == 0 ? here : there)(group); });
  EXPECT_THAT(text, HasSubstr("the ranks make different calls"));
  const auto calls = witness.all_gather_object(group.recent_calls().back().describe());
  for (const auto& call : calls) EXPECT_THAT(text, HasSubstr(call));
  EXPECT_NE(calls[0], calls[1]) << "the lines differ";
}

const testing::Scenario differ("survivors: differ", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  const auto sum = [](const ProcessGroup& group) { group.all_reduce(torch::ones({12})); };
  expect_both_sides(context, sum,
                    [](const ProcessGroup& group) { group.all_reduce(torch::ones({12}, at::kInt)); });
  expect_both_sides(context, sum, [](const ProcessGroup& group) { group.all_reduce(torch::ones({13})); });
  expect_both_sides(context, sum,
                    [](const ProcessGroup& group) { group.all_reduce(torch::ones({12}), ReduceOp::MAX); });
  expect_both_sides(
      context, [](const ProcessGroup& group) { group.broadcast(torch::ones({3}), 0); },
      [](const ProcessGroup& group) { group.broadcast(torch::ones({3}), 1); });
  expect_both_sides(
      context,
      [](const ProcessGroup& group) {
        group.all_reduce(torch::ones({3}));
        group.broadcast(torch::ones({3}), 0);
      },
      [](const ProcessGroup& group) {
        group.broadcast(torch::ones({3}), 0);
        group.all_reduce(torch::ones({3}));
      });
});

class CallsThatDiffer : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Ranks, CallsThatDiffer, testing::backends_and_ranks({2}), testing::name_of_case);
// Over gloo the variable alone turns the check on.
TEST_P(CallsThatDiffer, AreReportedWithTheLinesOfBothRanks) {
  run(differ, {{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}});
}

// -- memory that is short on one rank

// While it lives, this process gets so many more bytes of address space.
class AddressLimit {
 public:
  explicit AddressLimit(std::size_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more, before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;

 private:
  rlimit before_{};
};

// Without room for the segment of the other rank there is no group; with it, the rank's own one is smaller.
const testing::Scenario short_of_addresses("survivors: addresses", [] {
  const auto context = init({.backend = "shm", .timeout = 1h});
  for (const int culprit : {0, 1}) {
    const auto error_with = [&](std::size_t room) {
      std::optional<AddressLimit> limit;
      if (context.rank() == culprit) limit.emplace(room);
      return error_of([&] { (void)context.new_group({0, 1}); });
    };
    EXPECT_THAT(error_with(total_memory() / 2),
                AllOf(HasSubstr("of address space could not be mapped"), HasSubstr("`ulimit -v` allows"),
                      HasSubstr("rank " + std::to_string(culprit) + ": shared memory")));
    EXPECT_EQ(error_with(total_memory() / 2 * 3), "");
  }
  auto x = torch::ones({5});
  context.new_group({0, 1}).all_reduce(x);
  EXPECT_EQ(x[0].item<float>(), 2);
});
TEST(ShortMemory, OnOneRankIsReportedToTheGroup) {
  testing::expect_all_passed(testing::run_ranks(short_of_addresses));
}

const testing::Scenario short_of_memory("survivors: memory", [] {
  const auto context = init({.backend = "shm", .timeout = 1h});
  context.barrier();
  if (context.rank() == 1) {
    const auto ask = [&](std::size_t bytes) {
      return error_of([&] {
        (void)context.group().backend()->allocateTensor(static_cast<long>(bytes),
                                                        at::TensorOptions(at::kByte));
      });
    };
    EXPECT_THAT(ask((available_memory() + total_memory()) / 2),
                AllOf(HasSubstr("memory is short"), HasSubstr("are needed for tensors that ranks share"),
                      HasSubstr("are left")));
    const auto too_much = ask(total_memory() + (1UL << 30U));
    EXPECT_THAT(too_much, AllOf(HasSubstr("memory is short"), HasSubstr("for tensors that ranks share"),
                                HasSubstr("MiB in all")));
    throw Error("out of memory: " + too_much);
  }
  context.group().all_reduce(torch::ones({5}));
});
TEST(ShortMemory, ForATensorIsAnErrorAndEndsTheWaitOfOtherRanks) {
  const auto results = testing::run_ranks(short_of_memory);
  EXPECT_THAT(results[1].err, HasSubstr("out of memory: memory is short"));
  EXPECT_EQ(results[1].out.find("Failure"), std::string::npos) << results[1].out;
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("another rank is gone"), HasSubstr("rank 1 (pid ")));
}

// -- which backend was picked

const testing::Scenario picks("survivors: picks", [] {
  const auto context = init();
  (void)context.new_group({0, 1, 2});
  EXPECT_EQ(context.group().backend_name(), "shm");
});
TEST(Auto, LogsItsChoiceOnce) {
  const auto results = testing::run_ranks(picks, {.world_size = 3});
  testing::expect_all_passed(results);
  EXPECT_EQ(results[0].err, "[lockstep] backend shm for 3 ranks: all ranks are on one host\n");
  EXPECT_EQ(results[1].err + results[2].err, "");
}

}  // namespace
}  // namespace lockstep
