// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep_bench/kinds.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using Words = std::vector<std::string>;

nlohmann::json rows_of(const Words& words) {
  LauncherProcess launcher(words);
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  return nlohmann::json::parse(launcher.out());
}

template <typename Value>
std::vector<Value> column(const nlohmann::json& rows, const std::string& name) {
  std::vector<Value> values;
  for (const auto& row : rows) values.push_back(row.at(name).get<Value>());
  return values;
}

TEST(Bench, PrintsARowForEachSize) {
  const auto rows = rows_of({"bench", "all-reduce", "--backend", "gloo", "--nproc", "2", "--sizes", "1K:4K",
                             "--iterations", "3", "--json"});
  EXPECT_THAT(column<int>(rows, "bytes"), ElementsAre(1024, 2048, 4096));
  EXPECT_THAT(column<int>(rows, "count"), ElementsAre(256, 512, 1024));
  EXPECT_THAT(column<std::string>(rows, "backend"), Each("gloo"));
  EXPECT_THAT(column<std::string>(rows, "memory"), Each("ordinary"));
  EXPECT_THAT(column<int>(rows, "ranks"), Each(2));
  EXPECT_THAT(column<int>(rows, "iterations"), Each(3));
  EXPECT_THAT(column<int>(rows, "wrong"), Each(0));
  for (const auto& row : rows) {
    EXPECT_GT(row["microseconds"], 0);
    EXPECT_LE(row["p10"], row["microseconds"]);
    EXPECT_GE(row["p90"], row["microseconds"]);
    EXPECT_EQ(row["algbw"], row["busbw"]);  // of two ranks
  }
}

TEST(Bench, FindsNoWrongValueInAnyCollectiveOfThreeRanks) {
  const auto rows = rows_of({"bench", "all", "--backend", "shm,gloo", "--nproc", "3", "--sizes", "5000",
                             "--iterations", "2", "--warmup", "1", "--json"});
  const auto names = column<std::string>(rows, "collective");
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), bench::kinds().size());
  EXPECT_THAT(column<int>(rows, "wrong"), Each(0));
}

TEST(Bench, TimesTheMemoryLimitToo) {
  const auto rows = rows_of({"bench", "all-reduce", "--backend", "memory,shm", "--nproc", "3", "--sizes",
                             "20K", "--dtype", "float32,bfloat16", "--iterations", "2", "--json"});
  EXPECT_EQ(std::ranges::count(column<std::string>(rows, "memory"), "limit"), 1);
  EXPECT_THAT(column<int>(rows, "wrong"), Each(0));
}

TEST(Bench, ReportsThatGlooHasNoRegisteredMemory) {
  LauncherProcess launcher({"bench", "broadcast", "--backend", "gloo", "--memory", "ordinary,zero-copy",
                            "--sizes", "1K", "--iterations", "1", "--csv"});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr("no rows for --memory zero-copy"));
  EXPECT_EQ(lines_of(launcher.out()).size(), 2U) << launcher.out();
}

// Two hosts that LOCKSTEP_HOST_ID makes of one.
TEST(Bench, PredictsTheTimesBetweenHosts) {
  const std::string script =
      "export LOCKSTEP_HOST_ID=$((RANK / 2)) GLOO_SOCKET_IFNAME=lo; exec \"$0\" all-reduce --nodes --json "
      "--sizes 1K:64K:4,8M --iterations 3 --warmup 1 --no-bind";
  const auto rows = rows_of({"run", "--nproc-per-node", "4", "--plain-lines", "--", "/bin/sh", "-c", script,
                             LOCKSTEP_BENCH_PROGRAM});
  EXPECT_THAT(column<std::string>(rows, "backend"), IsSupersetOf({"hierarchical", "gloo"}));
  EXPECT_THAT(column<int>(rows, "wrong"), Each(0));
  EXPECT_THAT(column<double>(rows, "predicted"), Each(Gt(0)));
  for (const auto& row : rows) {
    const auto& model = row["model"];
    EXPECT_GT(model["alpha"].get<double>() + model["beta"].get<double>() + model["gamma"].get<double>(), 0);
  }
}

TEST(Bench, NodesNeedHosts) {
  LauncherProcess launcher({"bench", "all-reduce", "--nodes", "--sizes", "1K"});
  EXPECT_NE(launcher.finish(), 0);
  EXPECT_THAT(launcher.err(), HasSubstr("--nodes needs ranks on several hosts"));
}

// The hosts are two names of this one; a shell is the remote shell.
TEST(Bench, StartsOnHosts) {
  const TempFolder folder;
  const auto shell = folder.file("shell");
  std::ofstream(shell) << "#!/bin/sh\nshift; exec sh -c \"$*\"\n";
  std::filesystem::permissions(shell, std::filesystem::perms::owner_all);
  LauncherProcess launcher({"bench", "--hosts", "127.0.0.1,localhost", "--nproc", "1", "all-reduce",
                            "--backend", "gloo", "--sizes", "1K", "--iterations", "2", "--csv"},
                           {.env = {{"PET_SSH", shell},
                                    {"PET_MASTER_PORT", free_port()},
                                    {"LOCKSTEP_SECRET", "the secret of a test"}}});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_THAT(launcher.out(), HasSubstr("\nall-reduce,1024,256,float32,sum,gloo,ordinary,2,2,"));
}

TEST(Bench, ReportsAnErrorOnceAndStartsNothing) {
  LauncherProcess launcher({"bench", "all-reduce", "--sizes", "1Q"});
  EXPECT_EQ(launcher.finish(), 2);
  EXPECT_EQ(lines_of(launcher.err()).size(), 1U) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr("\"1Q\""));
}

TEST(Bench, PrintsHelp) {
  LauncherProcess launcher({"bench", "--help"});
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_THAT(launcher.out(), HasSubstr("--sizes"));
}

}  // namespace
}  // namespace lockstep::testing
