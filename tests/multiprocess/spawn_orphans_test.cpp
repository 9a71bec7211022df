// SPDX-License-Identifier: BSD-3-Clause
// Whatever is killed of a program with spawn(), nothing stays behind.
#include <csignal>
#include <fstream>
#include <iostream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/spawn/spawn.h>

#include "base/deadline.h"
#include "support/family.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kRanks = 3;
// The program, two guards, the ranks, and a child of each.
constexpr std::size_t kProcesses = 3 + 2 * kRanks;

// As a loader's or a shell's: away from its parent's session, and it does not obey.
void start_stubborn_child() {
  if (::fork() != 0) return;
  ::setsid();
  ::signal(SIGTERM, SIG_IGN);
  ::execl("/bin/sleep", "sleep", "1000", static_cast<char*>(nullptr));
  ::_exit(127);
}

// Tells on stdout what spawn() threw.
void spawn_sleepers(void (*prepare_rank)()) {
  try {
    spawn(
        [&](int) {
          prepare_rank();
          start_stubborn_child();
          while (true) ::pause();
        },
        {.nprocs = static_cast<int>(kRanks), .grace_period = std::chrono::milliseconds(100)});
  } catch (const Error& error) {
    std::cout << error.what() << std::flush;
  }
}

const testing::Scenario sleepers("spawn orphans: sleepers", [] { spawn_sleepers([] {}); });

const testing::Scenario stubborn("spawn orphans: stubborn ranks",
                                 [] { spawn_sleepers([] { ::signal(SIGTERM, SIG_IGN); }); });

std::string name_of(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return name;
}

// A guard takes its name after it has forked, so that its children may be seen before.
void wait_for_name(pid_t pid, const std::string& name) {
  const Deadline deadline(std::chrono::seconds(60));
  while (name_of(pid) != name) {
    if (deadline.expired())
      throw std::runtime_error("the process is named " + name_of(pid) + ", not " + name);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Who is who below the program.
struct Tree {
  Tree(const testing::Family& family, pid_t program) : caller(program) {
    const auto guards = family.children_of(caller);
    if (guards.size() != 1) throw std::runtime_error("there is not one guard");
    outer = guards[0];
    const auto watchers = family.children_of(outer);
    if (watchers.size() != 1) throw std::runtime_error("there is not one guard in the guard");
    inner = watchers[0];
    ranks = family.children_of(inner);
  }

  pid_t caller;
  pid_t outer = 0;
  pid_t inner = 0;
  std::vector<pid_t> ranks;
};

// Runs the program, does something to a part of it, and sees all of it end.
testing::RankResult run_and(const testing::Scenario& scenario, const std::function<void(const Tree&)>& act) {
  const testing::Family family;
  testing::RunOptions options{.world_size = 1, .env = family.mark()};
  options.while_running = [&](const std::vector<int>& pids) {
    family.wait_for(kProcesses);
    const Tree tree(family, pids[0]);
    EXPECT_THAT(tree.ranks, SizeIs(kRanks));
    wait_for_name(tree.outer, "spawn-guard");
    wait_for_name(tree.inner, "spawn-watch");
    act(tree);
  };
  const auto result = testing::run_ranks(scenario, options)[0];
  EXPECT_FALSE(result.timed_out);
  family.wait_for_none();
  return result;
}

TEST(SpawnOrphans, NoneWhenTheProgramIsKilled) {
  const auto result = run_and(sleepers, [](const Tree& tree) { ::kill(tree.caller, SIGKILL); });
  EXPECT_EQ(result.signal, SIGKILL);
}

TEST(SpawnOrphans, NoneWhenARankIsKilled) {
  const auto result = run_and(sleepers, [](const Tree& tree) { ::kill(tree.ranks[1], SIGKILL); });
  EXPECT_THAT(result.out, AllOf(HasSubstr("of 3 (process "), HasSubstr("was killed by SIGKILL")));
}

TEST(SpawnOrphans, NoneWhenOtherRanksIgnoreSignals) {
  const auto result = run_and(stubborn, [](const Tree& tree) { ::kill(tree.ranks[1], SIGKILL); });
  EXPECT_THAT(result.out, AllOf(HasSubstr("of 3 (process "), HasSubstr("was killed by SIGKILL")));
}

TEST(SpawnOrphans, NoneWhenTheRanksParentIsKilled) {
  const auto result = run_and(sleepers, [](const Tree& tree) { ::kill(tree.inner, SIGKILL); });
  EXPECT_THAT(result.out, HasSubstr("supervisor of the ranks was killed by SIGKILL"));
}

TEST(SpawnOrphans, NoneWhenTheGuardIsKilled) {
  const auto result = run_and(sleepers, [](const Tree& tree) { ::kill(tree.outer, SIGKILL); });
  EXPECT_THAT(result.out, HasSubstr("supervisor of the ranks was killed"));
}

TEST(SpawnOrphans, NoneWhenTheProgramIsKilledAndARanksParentIsStopped) {
  const auto result = run_and(sleepers, [](const Tree& tree) {
    ::kill(tree.inner, SIGSTOP);
    ::kill(tree.caller, SIGKILL);
  });
  EXPECT_EQ(result.signal, SIGKILL);
}

// Ctrl-C: the terminal sends SIGINT to a whole process group.
const testing::Scenario own_group("spawn orphans: own group", [] {
  ::setpgid(0, 0);
  spawn_sleepers([] {});
});

TEST(SpawnOrphans, NoneAfterControlC) {
  const auto result = run_and(own_group, [](const Tree& tree) { ::kill(-tree.caller, SIGINT); });
  EXPECT_EQ(result.signal, SIGINT);
}

const testing::Scenario own_handler("spawn orphans: own handler", [] {
  ::setpgid(0, 0);
  ::signal(SIGINT, [](int) {});
  spawn_sleepers([] {});
});

TEST(SpawnOrphans, NoneAfterControlCThatTheProgramHandles) {
  const auto result = run_and(own_handler, [](const Tree& tree) { ::kill(-tree.caller, SIGINT); });
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("was killed by SIGINT"));
}

// After a good end.
const testing::Scenario leftovers("spawn orphans: leftovers", [] {
  spawn([](int) { start_stubborn_child(); }, {.nprocs = 2, .grace_period = std::chrono::milliseconds(100)});
});

TEST(SpawnOrphans, NoneAfterANormalEnd) {
  const testing::Family family;
  testing::expect_all_passed(testing::run_ranks(leftovers, {.world_size = 1, .env = family.mark()}));
  EXPECT_THAT(family.members(), IsEmpty());
}

}  // namespace
}  // namespace lockstep
