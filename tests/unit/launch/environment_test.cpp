// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/environment.h>

namespace lockstep::launch {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const Env kNothing{std::map<std::string, std::string>{}};

TEST(Environment, NumbersRanksAcrossNodes) {
  const LaunchOptions options{.command = {"train"},
                              .nproc_per_node = 4,
                              .nnodes = 3,
                              .node_rank = 2,
                              .master_addr = "node0",
                              .master_port = std::uint16_t{29500}};
  const auto env = rank_environment(options, {.master_port = 29500, .cores = 4}, 1, kNothing);
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"LOCAL_RANK", "1"},
                                          {"RANK", "9"},
                                          {"GROUP_RANK", "2"},
                                          {"ROLE_RANK", "9"},
                                          {"ROLE_NAME", "default"},
                                          {"LOCAL_WORLD_SIZE", "4"},
                                          {"WORLD_SIZE", "12"},
                                          {"GROUP_WORLD_SIZE", "3"},
                                          {"ROLE_WORLD_SIZE", "12"},
                                          {"MASTER_ADDR", "node0"},
                                          {"MASTER_PORT", "29500"},
                                          {"TORCHELASTIC_RUN_ID", "none"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "False"}}) {
    EXPECT_THAT(env, Contains(Pair(name, value)));
  }
}

TEST(Environment, GivesEachRankItsShareOfTheCores) {
  const auto threads = [](int ranks, int cores) {
    return rank_environment({.nproc_per_node = ranks}, {.cores = cores}, 0, kNothing).at("OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads(1, 16), "16");
  EXPECT_EQ(threads(3, 16), "5");
  EXPECT_EQ(threads(4, 2), "1");
}

TEST(Environment, LeavesWhatTheUserChose) {
  const Env user({{"OMP_NUM_THREADS", "3"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}});
  const auto env = rank_environment({.nproc_per_node = 2}, {.cores = 16}, 0, user);
  EXPECT_THAT(env, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_THAT(env, Not(Contains(Key("TORCH_NCCL_ASYNC_ERROR_HANDLING"))));
}

std::string complaint(const LaunchOptions& options) {
  try {
    validate(options);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchOptions, AreCheckedBeforeAnythingStarts) {
  EXPECT_EQ(complaint({.command = {"train"}}), "");
  EXPECT_THAT(complaint({}), HasSubstr("no program"));
  EXPECT_THAT(complaint({.command = {"train"}, .nproc_per_node = 0}), HasSubstr("nproc-per-node is 0"));
  EXPECT_THAT(complaint({.command = {"train"}, .nnodes = 0}), HasSubstr("nnodes is 0"));
  EXPECT_THAT(complaint({.command = {"train"}, .node_rank = 1}), HasSubstr("node-rank is 1"));
  EXPECT_THAT(complaint({.command = {"train"}, .nnodes = 2}), HasSubstr("master-port is needed"));
  EXPECT_THAT(complaint({.command = {"train"}, .master_port = std::uint16_t{0}}),
              HasSubstr("master-port is 0"));
  EXPECT_THAT(complaint({.command = {"train"}, .grace_period = std::chrono::milliseconds(-1)}),
              HasSubstr("grace-period"));
}

}  // namespace
}  // namespace lockstep::launch
