// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep_bench/kinds.h"
#include "support/launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
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
