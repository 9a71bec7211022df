// SPDX-License-Identifier: BSD-3-Clause
#include "launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/error_of.h"

namespace lockstep::launch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const Env kNothing{std::map<std::string, std::string>{}};

TEST(Environment, NumbersRanksAcrossNodes) {
  const LaunchOptions options{.command = {"train"}, .nproc_per_node = 4, .max_restarts = 5};
  const NodeAssignment assignment{.attempt = 4,
                                  .restarts = 3,
                                  .node_rank = 2,
                                  .nodes = 3,
                                  .first_rank = 8,
                                  .world_size = 12,
                                  .first_role_rank = 4,
                                  .role_world_size = 8,
                                  .master_addr = "node0",
                                  .master_port = 29500};
  const auto env = rank_environment(options, assignment, 1, 2, kNothing);
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"LOCAL_RANK", "1"},
                                          {"RANK", "9"},
                                          {"GROUP_RANK", "2"},
                                          {"ROLE_RANK", "5"},
                                          {"ROLE_NAME", "default"},
                                          {"LOCAL_WORLD_SIZE", "4"},
                                          {"WORLD_SIZE", "12"},
                                          {"GROUP_WORLD_SIZE", "3"},
                                          {"ROLE_WORLD_SIZE", "8"},
                                          {"MASTER_ADDR", "node0"},
                                          {"MASTER_PORT", "29500"},
                                          {"TORCHELASTIC_RUN_ID", "none"},
                                          {"TORCHELASTIC_RESTART_COUNT", "3"},
                                          {"TORCHELASTIC_MAX_RESTARTS", "5"},
                                          {"OMP_NUM_THREADS", "2"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "False"}}) {
    EXPECT_THAT(env, Contains(Pair(name, value)));
  }
}

TEST(Environment, ShowsEachRankOneGpuOnRequest) {
  const LaunchOptions options{.command = {"train"}, .nproc_per_node = 2, .virtual_local_rank = true};
  const auto second = rank_environment(options, {}, 1, 1, kNothing);
  EXPECT_EQ(second.at("LOCAL_RANK"), "0");
  EXPECT_EQ(second.at("CUDA_VISIBLE_DEVICES"), "1");
  const Env two(std::map<std::string, std::string>{{"CUDA_VISIBLE_DEVICES", "5, 7"}});
  EXPECT_EQ(rank_environment(options, {}, 1, 1, two).at("CUDA_VISIBLE_DEVICES"), "7");
  EXPECT_THROW(rank_environment(options, {}, 2, 1, two), ArgumentError);
}

TEST(Environment, FillsTheLocalRankIntoArguments) {
  LaunchOptions options{.command = {"python3", "-u", "train.py", "--out=${local_rank}.txt", "${other}", "${"},
                        .program_words = 3};
  EXPECT_THAT(rank_arguments(options, 4),
              ElementsAre("python3", "-u", "train.py", "--out=4.txt", "${other}", "${"));
  options.pass_local_rank = true;
  EXPECT_EQ(rank_arguments(options, 4)[3], "--local-rank=4");
}

TEST(Environment, SetsTheChosenAllocator) {
  EXPECT_THAT(allocator_environment("default", kNothing), IsEmpty());
  EXPECT_THAT(allocator_environment("tuned", kNothing), Contains(Pair("MALLOC_MMAP_MAX_", "0")));
  EXPECT_THROW(allocator_environment("fast", kNothing), ArgumentError);
}

TEST(Environment, KeepsTheUsersVariables) {
  const Env user({{"OMP_NUM_THREADS", "3"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}});
  const auto env = rank_environment({.nproc_per_node = 2}, {}, 0, 8, user);
  EXPECT_THAT(env, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_THAT(env, Not(Contains(Key("TORCH_NCCL_ASYNC_ERROR_HANDLING"))));
}

TEST(Environment, KeepsTheSecretFromTheRanks) {
  EXPECT_THAT(rank_environment({}, {}, 0, 1, kNothing), Not(Contains(Key("LOCKSTEP_SECRET"))));
  const Env with_secret(std::map<std::string, std::string>{{"LOCKSTEP_SECRET", "sixteen characters"}});
  EXPECT_THAT(rank_environment({}, {}, 0, 1, with_secret), Contains(Pair("LOCKSTEP_SECRET", "")));
}

std::string complaint(const LaunchOptions& options) {
  return testing::error_of<ArgumentError>([&] { validate(options); });
}

TEST(LaunchOptions, AreCheckedBeforeAnythingStarts) {
  EXPECT_EQ(complaint({.command = {"train"}}), "");
  EXPECT_THAT(complaint({}), HasSubstr("no program"));
  EXPECT_THAT(complaint({.command = {"train"}, .nproc_per_node = 0}), HasSubstr("nproc-per-node is 0"));
  EXPECT_THAT(complaint({.command = {"train"}, .nodes = NodesOptions{.min_nodes = 0}}),
              HasSubstr("nnodes is 0:1"));
  EXPECT_THAT(complaint({.command = {"train"}, .nodes = NodesOptions{.max_nodes = 2}}),
              HasSubstr("need a common address"));
  EXPECT_THAT(complaint({.command = {"train"}, .master_port = std::uint16_t{0}}),
              HasSubstr("master-port is 0"));
  EXPECT_THAT(complaint({.command = {"train"}, .grace_period = std::chrono::milliseconds(-1)}),
              HasSubstr("grace-period"));
}

}  // namespace
}  // namespace lockstep::launch
