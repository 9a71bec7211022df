// SPDX-License-Identifier: BSD-3-Clause
// Ranks on two hosts are killed and replaced by the launchers of their hosts; the run ends with the bits of one without
// kills. LOCKSTEP_HOST_ID makes two hosts of one. LOCKSTEP_FAULT_ROUNDS=50 for as many kills, LOCKSTEP_FAULT_SEED to see
// the same order of kills again.
#include <csignal>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "faults/training_on_two_hosts.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

void expect_all_continued(TrainingOnTwoHosts& training) {
  EXPECT_THAT(training.err(), HasSubstr("its replacement runs"));
  EXPECT_THAT(training.err(), HasSubstr("all 4 ranks continued from commit "));
  EXPECT_THAT(training.err(), Not(HasSubstr("stopping ")));
}

class LostOnTwoHosts : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(LostOnTwoHosts, RanksAreReplacedAndTheBitsStay) {
  ASSERT_THAT(calm_on_two_hosts(), SizeIs(4));
  TrainingOnTwoHosts training(with_replacements(10));
  training.wait_for_last_step();
  for (const int victim : GetParam()) ::kill(training.rank(victim), SIGKILL);
  EXPECT_EQ(training.finish(), calm_on_two_hosts()) << training.err();
  expect_all_continued(training);
  // Not from the first step, which would give the same weights.
  EXPECT_THAT(training.launcher(0).out(), HasSubstr("of 0 at step 299"));
  EXPECT_THAT(training.launcher(1).out(), HasSubstr("of 3 at step 299"));
}
INSTANTIATE_TEST_SUITE_P(Ranks, LostOnTwoHosts,
                         ::testing::Values(std::vector{3}, std::vector{0}, std::vector{1, 2},
                                           std::vector{0, 1}, std::vector{0, 1, 2, 3}));

// With shards, optimizer states and a loop that only one rank has.
class LostInMode : public ::testing::TestWithParam<const char*> {};

TEST_P(LostInMode, RanksAreReplacedAndTheBitsStay) {
  ASSERT_THAT(calm_on_two_hosts(GetParam()), SizeIs(4));
  TrainingOnTwoHosts training(with_replacements(10), 2, GetParam());
  training.wait_for_last_step();
  for (const int victim : {0, 3}) ::kill(training.rank(victim), SIGKILL);
  EXPECT_EQ(training.finish(), calm_on_two_hosts(GetParam())) << training.err();
  expect_all_continued(training);
}
INSTANTIATE_TEST_SUITE_P(OnTwoHosts, LostInMode, ::testing::Values("zero", "fsdp", "trainer"));

// Spares of both hosts.
TEST(ElasticHosts, RanksAreKilledAtRandomMoments) {
  ASSERT_THAT(calm_on_two_hosts(), SizeIs(4));
  const int kills = static_cast<int>(Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(4));
  const auto seed = Env().get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  std::cout << "LOCKSTEP_FAULT_SEED=" << seed << std::endl;
  std::mt19937 random(static_cast<unsigned>(seed));
  TrainingOnTwoHosts training(with_replacements(10000, {"--spares", "1"}), 2, "",
                              std::chrono::seconds(120 + 5 * kills));
  training.wait();
  for (int i = 0; i < kills; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 700'000));
    const auto alive = training.processes();
    ASSERT_THAT(alive, Not(::testing::IsEmpty())) << training.err();
    ::kill(alive[random() % alive.size()], SIGKILL);
  }
  EXPECT_EQ(training.finish(), calm_on_two_hosts()) << training.err();
  expect_all_continued(training);
}

// The hosts have networks and names of their own.
TEST(ElasticHosts, RanksAreReplacedOverACable) {
  const TempFolder folder;
  const auto script = fmt::format("exec {} {} {}", ELASTIC_RANK_PROGRAM, kSteps, folder.path().string());
  LauncherProcess nodes({"run", "--on-loss", "restart", "--", "unshare", "-Urn", LOCKSTEP_TWO_NODES,
                         LOCKSTEP_PROGRAM, script, "2", "5"},
                        {.env = {{"PET_ON_LOSS", "replace"}, {"OMP_NUM_THREADS", "1"}}, .watchdog = 120s});
  nodes.wait_for("pid ", 4);
  nodes.wait_for("waits");
  for (const int victim : {0, 3}) ::kill(nodes.rank_pid(victim), SIGKILL);
  std::ofstream(folder.path() / "enough").flush();
  EXPECT_EQ(nodes.finish(), 0) << nodes.err();
  EXPECT_EQ(weights_in(nodes), calm_on_two_hosts()) << nodes.err();
  EXPECT_THAT(nodes.err(), HasSubstr("all 4 ranks continued from commit 299"));
  nodes.wait_for_no_family();
}

// Over gloo they could not form their group again.
TEST(ElasticHosts, HostsOfOneRankAreHierarchical) {
  TrainingOnTwoHosts calm(with_replacements(1), 1);
  const auto weights = calm.finish();
  ASSERT_THAT(weights, SizeIs(2));
  TrainingOnTwoHosts training(with_replacements(1), 1);
  training.wait_for_last_step();
  ::kill(training.rank(0), SIGKILL);
  EXPECT_EQ(training.finish(), weights) << training.err();
  EXPECT_THAT(training.err(), HasSubstr("all 2 ranks continued from commit 299"));
}

// The launchers have another store, port and memory then.
TEST(ElasticHosts, ARankThatIsLostBeforeAllStartsAllAgain) {
  TrainingOnTwoHosts training(with_replacements(2), 2, "before");
  EXPECT_EQ(training.finish(), calm_on_two_hosts()) << training.err();
  EXPECT_THAT(training.err(), HasSubstr("rank 1 exited with code 3; restart 1 of 2"));
  EXPECT_THAT(training.err(), Not(HasSubstr("its replacement runs")));
}

// Then one is lost and replaced.
TEST(ElasticHosts, ARankIsReplacedAfterAllHaveStartedAgain) {
  TrainingOnTwoHosts training(with_replacements(2), 2, "before");
  training.wait_for_last_step();
  ::kill(training.rank(3), SIGKILL);
  EXPECT_EQ(training.finish(), calm_on_two_hosts()) << training.err();
  EXPECT_THAT(training.err(), HasSubstr("its replacement runs (2 of 2 restarts)"));
  EXPECT_THAT(training.err(), HasSubstr("all 4 ranks continued from commit 299"));
}

// The restarts of both hosts count together.
TEST(ElasticHosts, NoRestartIsLeft) {
  TrainingOnTwoHosts training(with_replacements(1));
  training.wait_for_last_step();
  ::kill(training.rank(3), SIGKILL);
  training.launcher(0).wait_for("of 0 at step 299");
  ::kill(training.rank(1), SIGKILL);
  for (int host = 0; host < kHosts; ++host) {
    EXPECT_EQ(training.launcher(host).finish(), 137) << training.err();
    EXPECT_THAT(training.launcher(host).err(), HasSubstr("rank 1 failed first: it was killed by SIGKILL"));
    training.launcher(host).wait_for_no_family();
  }
  EXPECT_THAT(training.launcher(1).err(), HasSubstr("its replacement runs (1 of 1 restarts)"));
}

// Node 0's launcher serves the store of the run, and node 1's replaces the ranks there.
class LostLauncher : public ::testing::TestWithParam<int> {};

TEST_P(LostLauncher, EndsTheRun) {
  TrainingOnTwoHosts training(with_replacements(1));
  training.wait_for_last_step();
  ::kill(training.rank(3), SIGKILL);  // which takes the only restart
  training.launcher(0).wait_for("of 0 at step 299");
  const int lost = GetParam();
  training.launcher(lost).send(SIGKILL);
  auto& other = training.launcher(1 - lost);
  EXPECT_GT(other.finish(), 0) << training.err();
  EXPECT_THAT(other.err(), HasSubstr(lost == 0 ? ", so the run ends; stopping this node's ranks"
                                               : "was lost: its connection closed"));
  for (int host = 0; host < kHosts; ++host) training.launcher(host).wait_for_no_family();
}
INSTANTIATE_TEST_SUITE_P(OfNode, LostLauncher, ::testing::Values(0, 1));

TEST(ElasticHosts, AllLaunchersHaveOneWayToTreatLosses) {
  const auto port = free_port();
  const auto node = [&](int rank, std::vector<std::string> more) {
    std::vector<std::string> words{"run",         "--nnodes",           "2",
                                   "--node-rank", std::to_string(rank), "--master-port",
                                   port,          "--max-restarts",     "1"};
    words.insert(words.end(), more.begin(), more.end());
    for (const char* word : {"--", "/bin/true"}) words.emplace_back(word);
    return LauncherProcess(words, on_host(rank, 60s));
  };
  auto first = node(0, {});
  auto second = node(1, {"--on-loss", "replace"});
  EXPECT_NE(second.finish(), 0);
  EXPECT_THAT(second.err(), HasSubstr("has --on-loss replace, but the node on"));
  first.send(SIGTERM);
  first.finish();
}

}  // namespace
}  // namespace lockstep::testing
