// SPDX-License-Identifier: BSD-3-Clause
#include "training/return_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::training {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// [rank]: the first rank of its launcher.
std::vector<HeldCommits> ranks_of(const std::vector<std::int64_t>& launchers,
                                  const std::vector<std::string>& hosts = {}) {
  std::vector<HeldCommits> ranks;
  for (std::size_t rank = 0; rank < launchers.size(); ++rank)
    ranks.push_back({.host = hosts.empty() ? "host" : hosts[rank], .launcher = launchers[rank]});
  return ranks;
}

void keep(std::vector<HeldCommits>& ranks, int rank, std::vector<std::int64_t> own,
          const std::vector<std::pair<std::int64_t, int>>& copies = {}) {
  auto& held = ranks[static_cast<std::size_t>(rank)];
  for (const auto number : own) held.own.push_back({.number = number, .common_bytes = 100});
  for (const auto& [number, of] : copies) held.copies.push_back({.number = number, .rank = of, .bytes = 10});
}

std::vector<std::pair<int, int>> transfers_of(const ReturnPlan& plan) {
  std::vector<std::pair<int, int>> pairs;
  for (const auto& each : plan.transfers) pairs.emplace_back(each.from, each.to);
  return pairs;
}

TEST(Neighbours, AreTheSameRanksOfTheNextHost) {
  EXPECT_THAT(neighbours_of(ranks_of({0, 0, 0})), IsEmpty());
  EXPECT_THAT(neighbours_of(ranks_of({0, 0, 2, 2})), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(neighbours_of(ranks_of({0, 0, 2, 2, 4, 4})), ElementsAre(2, 3, 4, 5, 0, 1));
  EXPECT_THAT(neighbours_of(ranks_of({0, 0, 0, 3})), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(neighbours_of(ranks_of({0, 1, 0, 1})), ElementsAre(1, 0, 3, 2)) << "ranks need not be in order";
}

TEST(Neighbours, AreOnAnotherHostIfThereIsOne) {
  EXPECT_THAT(neighbours_of(ranks_of({0, 1, 2, 3}, {"a", "a", "b", "b"})), ElementsAre(2, 2, 0, 0));
  EXPECT_THAT(neighbours_of(ranks_of({0, 1, 2}, {"a", "a", "a"})), ElementsAre(1, 2, 0));
  EXPECT_THAT(neighbours_of(ranks_of({0, 0}, {"a", "b"})), ElementsAre(1, 0));
}

TEST(ReturnPlan, IsTheNewestCommitOfAll) {
  auto ranks = ranks_of({0, 0, 2, 2});
  for (int rank = 0; rank < 4; ++rank) keep(ranks, rank, {5, 6});
  ranks[2].own.push_back({.number = 7});
  ranks[2].own.erase(ranks[2].own.begin());
  const auto plan = plan_return(ranks);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->number, 6);
  EXPECT_THAT(plan->transfers, IsEmpty());
}

TEST(ReturnPlan, TakesCopiesOfRanksWithoutCommits) {
  auto ranks = ranks_of({0, 0, 2, 2});
  keep(ranks, 2, {5, 6}, {{5, 0}, {6, 0}});
  keep(ranks, 3, {6, 7}, {{5, 1}, {6, 1}});
  const auto plan = plan_return(ranks);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->number, 6);
  EXPECT_EQ(plan->source, 2);
  EXPECT_THAT(transfers_of(*plan), ElementsAre(std::pair(2, 0), std::pair(3, 1)));
}

// The copy of commit 6 of rank 1 has not come.
TEST(ReturnPlan, GoesBackToACommitWhoseCopiesHaveCome) {
  auto ranks = ranks_of({0, 0, 2, 2});
  keep(ranks, 2, {5, 6}, {{5, 0}, {6, 0}});
  keep(ranks, 3, {5, 6}, {{4, 1}, {5, 1}});
  const auto plan = plan_return(ranks);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->number, 5);
  EXPECT_EQ(plan->transfers.size(), 2U);
}

TEST(ReturnPlan, ThereIsNoneIfACopyIsLostToo) {
  auto ranks = ranks_of({0, 0, 2, 2});
  keep(ranks, 1, {5, 6}, {{5, 3}, {6, 3}});
  keep(ranks, 3, {5, 6}, {{5, 1}, {6, 1}});
  EXPECT_FALSE(plan_return(ranks)) << "ranks 0 and 2 are each other's neighbours";
  auto copies_only = ranks_of({0, 1});
  keep(copies_only, 0, {}, {{5, 1}});
  keep(copies_only, 1, {}, {{5, 0}});
  EXPECT_FALSE(plan_return(copies_only)) << "nobody has what is common";
  EXPECT_FALSE(plan_return(ranks_of({0, 1})));
}

TEST(HeldCommits, AreToldToTheOthers) {
  auto ranks = ranks_of({3}, {"a host"});
  keep(ranks, 0, {5, 6}, {{5, 1}, {6, 2}});
  ranks[0].message_bytes = 4096;
  const auto told = unpacked(packed(ranks[0]));
  EXPECT_EQ(told.host, "a host");
  EXPECT_EQ(told.launcher, 3);
  EXPECT_EQ(told.message_bytes, 4096);
  ASSERT_NE(told.find_own(6), nullptr);
  EXPECT_EQ(told.find_own(6)->common_bytes, 100);
  ASSERT_NE(told.find_copy(6, 2), nullptr);
  EXPECT_EQ(told.find_copy(6, 2)->bytes, 10);
  EXPECT_EQ(told.find_copy(6, 1), nullptr);
  EXPECT_EQ(told.find_own(7), nullptr);
}

}  // namespace
}  // namespace lockstep::training
