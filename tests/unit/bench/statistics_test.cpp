// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep_bench/kinds.h"
#include "lockstep_bench/report.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;

TEST(Statistics, QuantilesLieBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}, 0.1), 10);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.9), 9);
  EXPECT_DOUBLE_EQ(quantile({5}, 0.9), 5);
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0);
}

TEST(Statistics, ACallTakesAsLongAsOnItsSlowestRank) {
  EXPECT_THAT(slowest({{1, 5, 2}, {3, 4, 2}, {2, 1, 9}}), ElementsAre(3, 5, 9));
}

TEST(Statistics, BandwidthFollowsFromTheMedian) {
  const auto row = with_times({.bytes = 4'000'000}, {0.004, 0.001, 0.002}, 1.5);
  EXPECT_DOUBLE_EQ(row.microseconds, 2000);
  EXPECT_DOUBLE_EQ(row.p10, 1200);
  EXPECT_DOUBLE_EQ(row.p90, 3600);
  EXPECT_DOUBLE_EQ(row.algbw, 2);
  EXPECT_DOUBLE_EQ(row.busbw, 3);
}

TEST(Statistics, LongCallsAreTimedLessOften) {
  int before = iterations_for(1);
  for (std::size_t bytes = 1; bytes <= 1UL << 30U; bytes *= 2) {
    EXPECT_LE(iterations_for(bytes), before);
    before = iterations_for(bytes);
  }
  EXPECT_GE(before, 10);
}

// nccl-tests, PERFORMANCE.md: what the hardware moves for each byte of the size.
TEST(Kinds, BusFactorsAreThoseOfNcclTests) {
  const std::map<std::string, double> of_four_ranks{
      {"all-reduce", 1.5}, {"all-gather", 0.75}, {"reduce-scatter", 0.75}, {"broadcast", 1}, {"reduce", 1},
      {"gather", 0.75},    {"scatter", 0.75},    {"all-to-all", 0.75},     {"send-recv", 1}, {"barrier", 1}};
  EXPECT_EQ(of_four_ranks.size(), kinds().size());
  for (const auto& [name, factor] : of_four_ranks) EXPECT_EQ(bus_factor(find_kind(name), 4), factor) << name;
}

TEST(Kinds, PartsAreEqualAndNeverEmpty) {
  EXPECT_EQ(element_count(find_kind("all-reduce"), 1024, 4, 3), 256);
  EXPECT_EQ(element_count(find_kind("all-gather"), 1024, 4, 3), 255);
  EXPECT_EQ(element_count(find_kind("all-gather"), 4, 8, 3), 3);
  EXPECT_EQ(element_count(find_kind("reduce"), 4, 8, 3), 1);
}

}  // namespace
}  // namespace lockstep::bench
