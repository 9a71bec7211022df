// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/backends/backends.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "observe/call_names.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Fake {
  c10::intrusive_ptr<backends::FakeBackend> backend = c10::make_intrusive<backends::FakeBackend>(0, 2);
  ProcessGroup group{backend, {.traits = backends::FakeBackend::traits()}};
};

TEST(CallRecord, NumbersKindShapeAndTheCallersLine) {
  const Fake fake;
  fake.group.barrier();
  const auto line = std::source_location::current().line() + 1;
  auto work = fake.group.all_reduce_async(torch::ones({2, 3}, at::kDouble));
  const auto calls = fake.group.recent_calls();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].number, 1U);
  EXPECT_EQ(calls[0].kind, CallKind::barrier);
  EXPECT_EQ(calls[0].state, CallState::completed);
  EXPECT_EQ(calls[1].number, 2U);
  EXPECT_EQ(calls[1].kind, CallKind::all_reduce);
  EXPECT_EQ(calls[1].dtype, at::kDouble);
  EXPECT_THAT(calls[1].shape, ElementsAre(2, 3));
  EXPECT_THAT(calls[1].where.file_name(), EndsWith("call_record_test.cpp"));
  EXPECT_EQ(calls[1].where.line(), line);
  EXPECT_EQ(calls[1].state, CallState::issued);
  work.wait();
  EXPECT_EQ(fake.group.recent_calls()[1].state, CallState::completed);
  EXPECT_THAT(work.record().describe(), HasSubstr("all_reduce #2 of Double[2, 3] at call_record_test.cpp:"));
}

TEST(CallRecord, KeepsTheLast128) {
  const Fake fake;
  for (int i = 0; i < 300; ++i) fake.group.barrier();
  const auto calls = fake.group.recent_calls();
  ASSERT_EQ(calls.size(), 128U);
  EXPECT_EQ(calls.front().number, 173U);
  EXPECT_EQ(calls.back().number, 300U);
}

TEST(CallRecord, ProcessesWithoutLibTorchKnowItsDtypes) {
  for (int number = 0; number < static_cast<int>(at::ScalarType::Undefined); ++number) {
    EXPECT_EQ(observe::name_in(observe::kDtypeNames, number),
              c10::toString(static_cast<at::ScalarType>(number)));
  }
}

TEST(CallRecord, CopiesOfAGroupShareTheLog) {
  const Fake fake;
  const ProcessGroup copy = fake.group;
  copy.barrier();
  EXPECT_EQ(fake.group.recent_calls().size(), 1U);
}

TEST(Work, WithoutACallIsComplete) {
  Work none;
  none.wait();
  EXPECT_TRUE(none.is_completed());
  EXPECT_THROW(none.record(), ArgumentError);
  EXPECT_THROW(none.source_rank(), ArgumentError);
}

TEST(Work, CallsBackOnceInTheWaitOfAnyCopy) {
  const Fake fake;
  std::vector<int> called;
  auto work = fake.group.all_reduce_async(torch::ones({2}));
  auto copy = work.then([&] { called.push_back(1); }).then([&] { called.push_back(2); });
  copy.wait();
  work.wait();
  work.then([&] { called.push_back(3); });
  EXPECT_EQ(called, (std::vector{1, 2, 3}));
  Work().then([&] { called.clear(); });
  EXPECT_TRUE(called.empty());
}

TEST(Work, TakesATimeLimit) {
  const Fake fake;
  auto work = fake.group.barrier_async();
  work.wait(std::chrono::milliseconds(10));
  work.wait(30);
  EXPECT_THROW(work.source_rank(), ArgumentError);
}

TEST(Work, OfObjectsHasOneTimeLimitForLengthsAndObjects) {
  const Fake fake;
  std::vector<std::optional<Timeout>> limits;
  const auto receive = [&](std::optional<Timeout> limit) {
    limits.push_back(limit);
    return 7;
  };
  ObjectWork<int> limited(fake.group.barrier_async(), receive);
  EXPECT_EQ(limited.wait(30), 7);
  EXPECT_EQ(limited.wait(30), 7) << "later calls return the result";
  EXPECT_EQ(ObjectWork<int>(fake.group.barrier_async(), receive).wait(), 7);
  ASSERT_EQ(limits.size(), 2U);
  EXPECT_LE(limits[0].value().milliseconds(), std::chrono::seconds(30));
  EXPECT_FALSE(limits[1]);
}

TEST(ProcessGroup, AClosedGroupThrows) {
  const Fake fake;
  fake.group.close();
  EXPECT_THAT([&] { fake.group.barrier(); }, ThrowsMessage<Error>(HasSubstr("has been closed")));
}

TEST(ProcessGroup, NeedsABackendAndAGlobalRankForEachRank) {
  EXPECT_THROW(ProcessGroup(nullptr, {}), ArgumentError);
  EXPECT_THROW(ProcessGroup(c10::make_intrusive<backends::FakeBackend>(0, 2), {.global_ranks = {3}}),
               ArgumentError);
}

TEST(ProcessGroup, GlobalRanks) {
  const Fake fake;
  EXPECT_EQ(fake.group.global_rank(1), 1);
  EXPECT_THROW((void)fake.group.global_rank(2), ArgumentError);
  const ProcessGroup sub(c10::make_intrusive<backends::FakeBackend>(0, 2), {.global_ranks = {3, 5}});
  EXPECT_EQ(sub.global_rank(1), 5);
}

}  // namespace
}  // namespace lockstep
