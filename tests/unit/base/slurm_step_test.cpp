// SPDX-License-Identifier: BSD-3-Clause
// The values are those that SLURM 22.05 sets.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/slurm.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

Env env(std::map<std::string, std::string> values) { return Env(std::move(values)); }

TEST(SlurmStep, IsStartedBySrun) {
  EXPECT_TRUE(in_slurm_step(env({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}})));
  EXPECT_TRUE(in_slurm_step(env({{"SLURM_PROCID", "0"}, {"SLURM_STEPID", "12"}})));
  EXPECT_TRUE(in_slurm_step(env({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"ENVIRONMENT", "BATCH"}})));
}

TEST(SlurmStep, IsNotTheShellOfAnAllocation) {
  EXPECT_FALSE(in_slurm_step(env({})));
  EXPECT_FALSE(in_slurm_step(env({{"SLURM_NTASKS", "3"}, {"SLURM_JOB_ID", "7"}})));
  EXPECT_FALSE(in_slurm_step(env({{"SLURM_PROCID", "0"}, {"ENVIRONMENT", "BATCH"}})));
  EXPECT_FALSE(in_slurm_step(env({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}})));
}

TEST(SlurmStep, HasItsOwnNodesAndTasks) {
  const auto step = env({{"SLURM_JOB_NODELIST", "n[1-4]"},
                         {"SLURM_STEP_NODELIST", "n[2-3]"},
                         {"SLURM_TASKS_PER_NODE", "4(x4)"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2,1"}});
  EXPECT_THAT(slurm_step_nodes(step), ElementsAre("n2", "n3"));
  EXPECT_THAT(slurm_step_tasks_per_node(step), ElementsAre(2, 1));
  EXPECT_THAT(slurm_step_nodes(env({{"SLURM_NODELIST", "n1"}})), ElementsAre("n1"));
  EXPECT_THAT(slurm_step_tasks_per_node(env({})), IsEmpty());
  EXPECT_THAT([] { slurm_step_nodes(env({})); },
              ThrowsMessage<RendezvousError>(HasSubstr("SLURM_JOB_NODELIST is missing")));
}

TEST(SlurmStep, HasItsOwnPorts) {
  const auto port = [](const char* job, const char* step, SlurmPort who = SlurmPort::ranks) {
    return slurm_step_port(env({{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}}), who);
  };
  EXPECT_EQ(port("77", "0"), port("77", "0"));
  EXPECT_NE(port("77", "0"), port("77", "1"));
  EXPECT_NE(port("77", "0"), port("78", "0"));
  EXPECT_NE(port("77", "0"), port("77", "0", SlurmPort::launchers));
  EXPECT_EQ(slurm_step_port(env({{"SLURM_JOBID", "77"}}), SlurmPort::ranks), port("77", "0"));
}

TEST(SlurmStep, RejectsInvalidNumbers) {
  EXPECT_THAT([] { slurm_step_port(env({}), SlurmPort::ranks); },
              ThrowsMessage<RendezvousError>(HasSubstr("SLURM_JOB_ID is missing; set MASTER_PORT")));
  EXPECT_THAT(
      [] {
        slurm_step_port(env({{"SLURM_JOB_ID", "four"}}), SlurmPort::ranks);
      },
      ThrowsMessage<RendezvousError>(HasSubstr("SLURM_JOB_ID=\"four\"")));
  EXPECT_THAT(
      [] {
        in_slurm_step(env({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "-1"}}));
      },
      ThrowsMessage<RendezvousError>(HasSubstr("SLURM_STEP_ID=-1 is negative")));
}

}  // namespace
}  // namespace lockstep
