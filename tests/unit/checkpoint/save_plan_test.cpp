// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/save_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace dcp = distributed_checkpoint;
using ::testing::AllOf;
using ::testing::HasSubstr;

Dict has(ShardedTensor tensor) { return {{"w", std::move(tensor)}}; }

ShardedTensor::Shard half(std::int64_t rank, at::ScalarType dtype) {
  return {.tensor = torch::full({2}, rank, dtype), .shard_offsets = {2 * rank}};
}

dcp::SavePlan plan_of(const std::vector<Dict>& ranks) {
  std::vector<std::string> descriptions;
  for (const auto& contents : ranks) descriptions.push_back(dcp::describe(dcp::flatten(contents), false));
  return dcp::plan_save(descriptions);
}

std::string error_of_plan(const std::vector<Dict>& ranks) {
  return error_of([&] { plan_of(ranks); });
}

TEST(DtypeOfParts, DefaultsToThatOfTheParts) {
  const TempFolder temp;
  dcp::save(has({.size = {2}, .local_shards = {half(0, at::kBFloat16)}}), temp.path());
  EXPECT_EQ(dcp::Reader(temp.path()).dtype("w"), at::kBFloat16);
  EXPECT_TRUE(equal(dcp::load(temp.path()), Dict{{"w", torch::zeros({2}, at::kBFloat16)}}));
  EXPECT_EQ(repr(Value(ShardedTensor{.size = {2}, .local_shards = {half(0, at::kHalf)}})),
            "ShardedTensor(float16, [2], 1 shards here)");
}

TEST(DtypeOfParts, IsThatOfRanksWithParts) {
  const ShardedTensor none{.size = {2}};
  const auto plan =
      plan_of({has(none), has({.size = {2}, .local_shards = {half(0, at::kBFloat16)}}), has(none)});
  ASSERT_EQ(plan.entries.size(), 1U);
  EXPECT_EQ(plan.entries[0].second.dtype, at::kBFloat16);
  ASSERT_EQ(plan.assignments.size(), 1U);
  EXPECT_EQ(plan.assignments[0].rank, 1U);
}

TEST(DtypeOfParts, DifferencesBetweenRanksAreRejectedNamingThem) {
  const auto part = [](std::int64_t rank, at::ScalarType dtype) {
    return has({.size = {4}, .local_shards = {half(rank, dtype)}});
  };
  EXPECT_THAT(
      error_of_plan({part(0, at::kFloat), part(1, at::kBFloat16)}),
      HasSubstr(
          "'w' is a sharded tensor of Float [4] on rank 0, but a sharded tensor of BFloat16 [4] on rank "
          "1; it must be alike"));
  // The first rank does not know.
  EXPECT_THAT(error_of_plan({has({.size = {4}}), part(0, at::kFloat), part(1, at::kHalf)}),
              AllOf(HasSubstr("of Float [4] on rank 1"), HasSubstr("of Half [4] on rank 2")));
  EXPECT_THAT(error_of_plan({has({.size = {4}, .dtype = at::kHalf}), part(0, at::kFloat)}),
              AllOf(HasSubstr("of Half [4] on rank 0"), HasSubstr("of Float [4] on rank 1")));
}

TEST(DtypeOfParts, DifferencesOnOneRankAreRejected) {
  EXPECT_THAT(
      error_of_plan({has({.size = {4}, .dtype = at::kFloat, .local_shards = {half(0, at::kBFloat16)}})}),
      HasSubstr("of BFloat16 instead of Float; all parts must be of the ShardedTensor's dtype"));
  EXPECT_THAT(error_of_plan({has({.size = {4}, .local_shards = {half(0, at::kHalf), half(1, at::kFloat)}})}),
              HasSubstr("of Float instead of Half; all parts must be of the first one's dtype"));
}

TEST(DtypeOfParts, IsRequiredWithoutParts) {
  EXPECT_THAT(error_of_plan({has({.size = {0, 3}}), has({.size = {0, 3}})}),
              HasSubstr("'w' is a ShardedTensor without parts"));
  const auto plan = plan_of({has({.size = {0, 3}}), has({.size = {0, 3}, .dtype = at::kHalf})});
  EXPECT_EQ(plan.entries[0].second.dtype, at::kHalf);
}

TEST(SavePlan, ADuplicateNameOnOneRankIsRejected) {
  const Dict once{{"a.b", 1}};
  const Dict twice{{"a.b", 1}, {"a", Dict{{"b", 2}}}};
  EXPECT_THAT(error_of_plan({twice}), HasSubstr("'a.b' is the name of two entries on rank 0"));
  EXPECT_THAT(error_of_plan({once, twice}), HasSubstr("'a.b' is the name of two entries on rank 1"));
}

}  // namespace
}  // namespace lockstep::testing
