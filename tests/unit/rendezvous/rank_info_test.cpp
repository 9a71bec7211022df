// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/rank_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/launched_rank.h"

namespace lockstep::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using Values = std::map<std::string, std::string>;

std::optional<RankInfo> found(const Values& values) {
  auto rank_info = from_environment(Env(values));
  if (rank_info) check(*rank_info);
  // Whoever asks before init() sees the same numbers, but no rank of a job of one.
  const auto launched = launched_rank(Env(values)).value_or(LaunchedRank{});
  const bool several = rank_info && rank_info->world_size > 1;
  EXPECT_EQ(launched.rank, several ? rank_info->rank : 0);
  EXPECT_EQ(launched.world_size, several ? rank_info->world_size : 1);
  return rank_info;
}

Values with(Values values, const Values& more) {
  for (const auto& [name, value] : more) values[name] = value;
  return values;
}

void expect_refused(const Values& values, const ::testing::Matcher<std::string>& text) {
  EXPECT_THAT([&] { found(values); }, ThrowsMessage<RendezvousError>(text));
}

const Values kLauncher{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Values kSlurm{{"SLURM_PROCID", "5"},
                    {"SLURM_NTASKS", "7"},
                    {"SLURM_LOCALID", "1"},
                    {"SLURM_JOB_ID", "4711"},
                    {"SLURM_NODEID", "1"},
                    {"SLURM_JOB_NODELIST", "gpu[07-08,11]"},
                    {"SLURM_TASKS_PER_NODE", "4,2,1"}};
const Values kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "job-9"}};

TEST(RankInfo, APlainProcessHasNoRank) { EXPECT_FALSE(found({{"HOME", "/root"}}).has_value()); }

TEST(RankInfo, PodOfAnIndexedJob) {
  const Values pod{{"JOB_COMPLETION_INDEX", "2"},
                   {"WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "train-0.train"},
                   {"MASTER_PORT", "29500"}};
  const auto p = found(pod);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 2);
  EXPECT_EQ(p->master_addr, "train-0.train");
  EXPECT_EQ(found(with(pod, {{"RANK", "3"}}))->rank, 3);
  EXPECT_FALSE(found({{"JOB_COMPLETION_INDEX", "2"}}).has_value());
  expect_refused(with(pod, {{"JOB_COMPLETION_INDEX", "4"}}), HasSubstr("rank 4 in a world of 4"));
}

TEST(RankInfo, Launcher) {
  const auto p = found(with(kLauncher, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}));
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 1);
  EXPECT_EQ(p->world_size, 4);
  EXPECT_EQ(p->local_rank, 1);
  EXPECT_EQ(p->local_world_size, 2);
  EXPECT_EQ(p->master_addr, "node0");
  EXPECT_EQ(p->master_port, 29500);
}

TEST(RankInfo, APartialLauncherListsSetAndMissingVariables) {
  expect_refused(
      {{"RANK", "1"}, {"MASTER_ADDR", "node0"}},
      AllOf(HasSubstr("seen RANK=1, MASTER_ADDR=node0"), HasSubstr("missing WORLD_SIZE, MASTER_PORT")));
  expect_refused({{"LOCAL_RANK", "0"}}, HasSubstr("missing RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"));
  expect_refused({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, HasSubstr("missing RANK, WORLD_SIZE"));
  expect_refused(with(kLauncher, {{"WORLD_SIZE", ""}}), HasSubstr("missing WORLD_SIZE"));
}

TEST(RankInfo, ContradictionsAreNamed) {
  expect_refused(with(kLauncher, {{"RANK", "4"}}), HasSubstr("rank 4 in a world of 4"));
  expect_refused(with(kLauncher, {{"WORLD_SIZE", "0"}}), HasSubstr("world size of 0"));
  expect_refused(with(kLauncher, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
                 HasSubstr("local rank 2 among 2"));
  expect_refused(with(kLauncher, {{"LOCAL_WORLD_SIZE", "5"}}), HasSubstr("local world size of 5"));
  expect_refused(with(kLauncher, {{"RANK", "-1"}}), HasSubstr("RANK=-1"));
  expect_refused(with(kLauncher, {{"RANK", "one"}}), HasSubstr("RANK=\"one\""));
  expect_refused(with(kLauncher, {{"MASTER_PORT", "70000"}}), HasSubstr("MASTER_PORT=70000"));
}

TEST(RankInfo, Slurm) {
  const auto p = found(kSlurm);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 5);
  EXPECT_EQ(p->world_size, 7);
  EXPECT_EQ(p->local_rank, 1);
  EXPECT_EQ(p->local_world_size, 2);
  EXPECT_EQ(p->master_addr, "gpu07");
}

TEST(RankInfo, SlurmOnOneNodeStaysOnTheLoopback) {
  const auto p = found(with(kSlurm, {{"SLURM_JOB_NODELIST", "gpu07"}}));
  EXPECT_EQ(p->master_addr, "127.0.0.1");
  EXPECT_EQ(p->local_world_size, 7);
}

TEST(RankInfo, SlurmsPortFollowsFromJobAndStep) {
  const int port = found(kSlurm)->master_port;
  EXPECT_EQ(found(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}))->master_port, port);
  EXPECT_NE(found(with(kSlurm, {{"SLURM_JOB_ID", "4712"}}))->master_port, port);
  EXPECT_NE(found(with(kSlurm, {{"SLURM_STEP_ID", "3"}}))->master_port, port);
  EXPECT_GE(port, 1024);
  EXPECT_LT(port, 32768);
}

TEST(RankInfo, ABatchScriptIsNotATask) {
  const auto script = with(kSlurm, {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", ""}});
  EXPECT_FALSE(found(script));
  const auto by_mpirun = with(script, {{"OMPI_COMM_WORLD_RANK", "3"},
                                       {"OMPI_COMM_WORLD_SIZE", "4"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  ASSERT_TRUE(found(by_mpirun));
  EXPECT_EQ(found(by_mpirun)->rank, 3);
  const auto by_srun = with(kSlurm, {{"ENVIRONMENT", "BATCH"}, {"SLURM_STEP_ID", "0"}});
  ASSERT_TRUE(found(by_srun));
  EXPECT_EQ(found(by_srun)->rank, 5);
}

// "srun --preserve-env" keeps the allocation's.
TEST(RankInfo, SlurmUsesTheStepNotTheAllocation) {
  EXPECT_EQ(found(with(kSlurm, {{"SLURM_NTASKS", "99"}, {"SLURM_STEP_NUM_TASKS", "7"}}))->world_size, 7);
}

// LaunchParameters=use_interactive_step: the shell is a step with a special number.
TEST(RankInfo, TheShellOfSallocIsAPlainProcess) {
  EXPECT_FALSE(found(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})));
}

TEST(RankInfo, SlurmRespectsMasterAddr) {
  const auto p = found(with(kSlurm, {{"MASTER_ADDR", "login"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(p->master_addr, "login");
  EXPECT_EQ(p->master_port, 1234);
  EXPECT_EQ(p->rank, 5);
}

TEST(RankInfo, SlurmWithMissingVariables) {
  expect_refused({{"SLURM_PROCID", "0"}},
                 AllOf(HasSubstr("SLURM_PROCID=0"), HasSubstr("missing SLURM_NTASKS")));
  expect_refused({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, HasSubstr("SLURM_JOB_NODELIST"));
  expect_refused(with(kSlurm, {{"SLURM_JOB_ID", ""}}), HasSubstr("SLURM_JOB_ID"));
}

TEST(RankInfo, SlurmWithInvalidValues) {
  expect_refused(with(kSlurm, {{"MASTER_PORT", "x"}}), HasSubstr("MASTER_PORT=\"x\""));
  expect_refused(with(kSlurm, {{"MASTER_PORT", "70000"}}), HasSubstr("not a TCP port"));
  expect_refused(with(kSlurm, {{"SLURM_JOB_ID", "four"}}), HasSubstr("SLURM_JOB_ID=\"four\""));
  expect_refused(with(kSlurm, {{"SLURM_NODEID", "3"}}), HasSubstr("SLURM_NODEID=3"));
  expect_refused(with(kSlurm, {{"SLURM_LOCALID", "2"}}), HasSubstr("local rank 2 among 2 ranks"));
  expect_refused(with(kSlurm, {{"SLURM_PROCID", "7"}}), HasSubstr("rank 7 in a world of 7"));
  expect_refused(with(kOpenMpi, {{"MASTER_PORT", "x"}}), HasSubstr("MASTER_PORT=\"x\""));
}

TEST(RankInfo, AnAllocationWithoutSrunIsAPlainProcess) {
  EXPECT_FALSE(found({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}}).has_value());
}

TEST(RankInfo, OpenMpiOnOneHost) {
  const auto p = found(kOpenMpi);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 1);
  EXPECT_EQ(p->world_size, 2);
  EXPECT_EQ(p->master_addr, "127.0.0.1");
  EXPECT_EQ(found(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}}))->master_port, p->master_port);
  EXPECT_NE(found(with(kOpenMpi, {{"PMIX_NAMESPACE", "job-10"}}))->master_port, p->master_port);
}

TEST(RankInfo, MpiOnSeveralHostsNeedsMasterAddr) {
  const auto wide = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  expect_refused(wide, AllOf(HasSubstr("MASTER_ADDR, MASTER_PORT"), HasSubstr("mpirun -x")));
  expect_refused(with(wide, {{"MASTER_ADDR", "a"}}),
                 AllOf(HasSubstr("missing MASTER_PORT"), Not(HasSubstr("missing MASTER_ADDR"))));
  EXPECT_EQ(found(with(wide, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "99"}}))->master_port, 99);
}

TEST(RankInfo, Pmi) {
  const auto p =
      found({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}});
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 2);
  expect_refused({{"PMI_RANK", "2"}}, HasSubstr("missing PMI_SIZE"));
}

// Its ranks inherit SLURM's variables from it.
TEST(RankInfo, TheLauncherPrecedesSlurmAndMpi) {
  const auto p = found(with(with(kSlurm, kOpenMpi), kLauncher));
  EXPECT_EQ(p->source, "the launcher's environment");
  EXPECT_EQ(p->rank, 1);
  EXPECT_EQ(p->world_size, 4);
  EXPECT_FALSE(p->local_rank);
  EXPECT_EQ(p->master_addr, "node0");
  EXPECT_EQ(p->master_port, 29500);
}

// Of mpirun's daemon.
TEST(RankInfo, RanksOfMpirunIgnoreInheritedSlurmVariables) {
  const auto daemons = with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}});
  const auto p = found(with(daemons, kOpenMpi));
  EXPECT_EQ(p->source, "Open MPI's environment");
  EXPECT_EQ(p->rank, 1);
  const Values hydra{
      {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
  EXPECT_EQ(found(with(daemons, hydra))->rank, 2);
}

// "srun --mpi=pmi2", which knows the nodes.
TEST(RankInfo, SlurmPrecedesPmi) {
  EXPECT_EQ(found(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}))->source, "SLURM's environment");
}

}  // namespace
}  // namespace lockstep::rendezvous
