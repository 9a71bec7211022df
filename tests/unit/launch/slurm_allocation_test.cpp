// SPDX-License-Identifier: BSD-3-Clause
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/slurm.h"

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Values = std::map<std::string, std::string>;

// What the second task of "srun -N3 --ntasks-per-node=1" finds.
const Values kStep{{"SLURM_JOB_ID", "4711"},
                   {"SLURM_STEP_ID", "2"},
                   {"SLURM_JOB_NODELIST", "gpu[01-08]"},
                   {"SLURM_STEP_NODELIST", "gpu[03-05]"},
                   {"SLURM_NTASKS", "3"},
                   {"SLURM_STEP_NUM_TASKS", "3"},
                   {"SLURM_PROCID", "1"},
                   {"SLURM_NODEID", "1"}};

Values changed(Values values, const Values& changes) {
  for (const auto& [name, value] : changes) values[name] = value;
  return values;
}

std::optional<SlurmNodes> nodes_of(const Values& changes = {}) {
  return slurm_nodes(Env(changed(kStep, changes)));
}

TEST(SlurmAllocation, OneTaskPerNodeIsOneLauncherPerNode) {
  const auto nodes = nodes_of();
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->nnodes, 3);
  EXPECT_EQ(nodes->node_rank, 1);
  EXPECT_EQ(nodes->master_addr, "gpu03");
}

TEST(SlurmAllocation, UsesTheNodeNotTheTask) {
  EXPECT_EQ(nodes_of({{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "2"}})->node_rank, 2);
}

TEST(SlurmAllocation, LaunchersUseAPortOfTheStep) {
  const auto port = nodes_of()->port;
  EXPECT_EQ(nodes_of({{"SLURM_PROCID", "2"}, {"SLURM_NODEID", "2"}})->port, port);
  EXPECT_NE(nodes_of({{"SLURM_STEP_ID", "3"}})->port, port);
  EXPECT_NE(nodes_of({{"SLURM_JOB_ID", "4712"}})->port, port);
}

TEST(SlurmAllocation, LauncherPortsDifferFromRankPorts) {
  for (const char* job : {"1", "2142", "2143", "67043327", "4294967295"}) {
    const auto values = changed(kStep, {{"SLURM_JOB_ID", job}});
    EXPECT_GE(nodes_of(values)->port, 22500) << job;
    EXPECT_LT(nodes_of(values)->port, 30000) << job;
    EXPECT_GE(slurm_step_port(Env(values), SlurmPort::ranks), 15000) << job;
    EXPECT_LT(slurm_step_port(Env(values), SlurmPort::ranks), 22500) << job;
  }
}

TEST(SlurmAllocation, OneNodeIsAnOrdinaryLaunch) {
  EXPECT_FALSE(
      nodes_of({{"SLURM_STEP_NODELIST", "gpu03"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NODEID", "0"}}));
}

TEST(SlurmAllocation, WithoutAStepTheLaunchIsAnOrdinaryOne) {
  EXPECT_FALSE(slurm_nodes(Env(Values{})));
  // salloc's shell; sbatch's; salloc's on the first node, where a site chose
  // LaunchParameters=use_interactive_step.
  EXPECT_FALSE(slurm_nodes(Env(Values{{"SLURM_JOB_ID", "1"}, {"SLURM_NNODES", "2"}, {"SLURM_NTASKS", "2"}})));
  EXPECT_FALSE(nodes_of({{"ENVIRONMENT", "BATCH"}, {"SLURM_STEP_ID", ""}}));
  EXPECT_FALSE(nodes_of({{"SLURM_STEP_ID", "4294967290"}}));
}

TEST(SlurmAllocation, ARankMayLaunchOnItsNode) {
  EXPECT_FALSE(nodes_of({{"RANK", "1"}, {"WORLD_SIZE", "6"}}));
}

TEST(SlurmAllocation, SeveralTasksOnANodeAreRejected) {
  const auto remedy = [](const std::string& words) {
    return ThrowsMessage<ArgumentError>(AllOf(HasSubstr(words), HasSubstr("--ntasks-per-node=1")));
  };
  EXPECT_THAT([] { nodes_of({{"SLURM_STEP_NUM_TASKS", "5"}}); }, remedy("--nodes=3 --ntasks=3"));
  EXPECT_THAT(
      [] {
        nodes_of({{"SLURM_STEP_NUM_TASKS", ""}, {"SLURM_NTASKS", "4"}});
      },
      remedy("4 times on 3 nodes"));
  EXPECT_THAT(
      [] {
        nodes_of({{"SLURM_STEP_NODELIST", "gpu03"}, {"SLURM_STEP_NUM_TASKS", "2"}});
      },
      remedy("2 times on 1 node,"));
}

TEST(SlurmAllocation, MissingVariablesAreNamed) {
  for (const char* name : {"SLURM_NODEID", "SLURM_JOB_ID"}) {
    EXPECT_THAT([&] { nodes_of({{name, ""}}); }, ThrowsMessage<RendezvousError>(HasSubstr(name)));
  }
  EXPECT_THAT(
      [] {
        nodes_of({{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}});
      },
      ThrowsMessage<RendezvousError>(HasSubstr("SLURM_JOB_NODELIST")));
  EXPECT_THAT(
      [] {
        nodes_of({{"SLURM_NODEID", "3"}});
      },
      ThrowsMessage<RendezvousError>(HasSubstr("SLURM_NODEID=3 of 3 nodes")));
}

}  // namespace
}  // namespace lockstep::launch
