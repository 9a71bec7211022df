// SPDX-License-Identifier: BSD-3-Clause
// The memory of a host is lost: its ranks are killed, and their replacements find no commits and no copies. They get their
// states from the copies on the other host, and the run ends with the bits of one without a loss.
#include <csignal>
#include <iostream>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "faults/training_on_two_hosts.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const Variables kForgets{{"ELASTIC_RANK_FORGETS", "1"}};

class ForgetfulTraining : public TrainingOnTwoHosts {
 public:
  explicit ForgetfulTraining(const std::string& mode = "")
      : TrainingOnTwoHosts(with_replacements(20), 2, mode, 120s, kForgets) {}

  void lose(const std::vector<int>& ranks) {
    for (const int victim : ranks) ::kill(rank(victim), SIGKILL);
  }
  // Until all ranks have come to the last step so often. Copies that they lacked have come then.
  void wait_at_last_step(int times) { launcher(0).wait_for("waits", times); }
};

struct Lost {
  const char* mode;
  std::vector<int> ranks;
};

class LostMemory : public ::testing::TestWithParam<Lost> {};

// Dropout, statistics of BatchNorm, shuffled positions and, by mode, shards and optimizer states differ between the ranks.
TEST_P(LostMemory, ComesBackFromTheOtherHost) {
  const auto& [mode, ranks] = GetParam();
  ASSERT_THAT(calm_on_two_hosts(mode), SizeIs(4));
  ForgetfulTraining training(mode);
  training.wait_for_last_step();
  training.lose(ranks);
  EXPECT_EQ(training.finish(), calm_on_two_hosts(mode)) << training.err();
  EXPECT_THAT(training.err(), ContainsRegex("all 4 ranks continued from commit [0-9]+: "));
  EXPECT_THAT(training.err(), HasSubstr(fmt::format("{} had no commits and got ", fmt::join(ranks, ", "))));
  // Not from the first step, which would give the same weights.
  EXPECT_THAT(training.err(), Not(HasSubstr("stopping ")));
}
INSTANTIATE_TEST_SUITE_P(Of, LostMemory,
                         ::testing::Values(Lost{"", {2, 3}}, Lost{"", {0, 1}}, Lost{"", {0, 3}},
                                           Lost{"zero", {2, 3}}, Lost{"fsdp", {0, 1}},
                                           Lost{"trainer", {2, 3}}));

// After each loss the copies on the lost host are made anew, or the next loss would be one of all commits.
TEST(CommitCopies, HostsLoseTheirMemoryInTurn) {
  ASSERT_THAT(calm_on_two_hosts("fsdp"), SizeIs(4));
  const auto seed = Env().get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  std::cout << "LOCKSTEP_FAULT_SEED=" << seed << std::endl;
  std::mt19937 random(static_cast<unsigned>(seed));
  ForgetfulTraining training("fsdp");
  training.wait();
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 1'000'000));
  training.lose({2, 3});
  training.wait_at_last_step(1);
  training.lose({0, 1});
  training.wait_at_last_step(2);
  training.lose({2, 3});
  EXPECT_EQ(training.finish(), calm_on_two_hosts("fsdp")) << training.err();
  EXPECT_THAT(training.err(), Not(HasSubstr("stopping ")));
}

// Rank 3 keeps the copies of rank 1, and rank 1 those of rank 3.
TEST(CommitCopies, ARankAndItsNeighbourLoseTheirMemory) {
  ASSERT_THAT(calm_on_two_hosts(), SizeIs(4));
  ForgetfulTraining training;
  training.wait_for_last_step();
  training.lose({1, 3});
  EXPECT_EQ(training.finish(), calm_on_two_hosts()) << training.err();
  EXPECT_THAT(training.err(),
              AllOf(HasSubstr("the commits of ranks 1, 3 are lost, and so are their copies; all ranks "
                              "start again"),
                    ContainsRegex("restart [0-9]+ of 20")));
}

}  // namespace
}  // namespace lockstep::testing
