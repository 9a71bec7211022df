// SPDX-License-Identifier: BSD-3-Clause
// Messages that are short enough to be done on the spot, beside those that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep::short_message_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor message(int number) { return torch::full({200}, number); }

CallRecord last_call(const ProcessGroup& group) { return group.recent_calls().back(); }

const testing::Scenario at_once("short: at once", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto& group = context.group();
  if (context.rank() == 0) {
    auto tensor = message(7);
    auto work = group.send_async(tensor, 1, 3);
    tensor.zero_();  // the other rank already has it
    EXPECT_TRUE(work.is_completed());
    EXPECT_EQ(work.record().kind, CallKind::send);
    EXPECT_THAT(work.record().shape, ElementsAre(200));
    EXPECT_EQ(last_call(group).number, work.record().number);
    EXPECT_EQ(last_call(group).state, CallState::completed);
    EXPECT_GT(last_call(group).issued_at.time_since_epoch().count(), 0);
    work.wait();
    work.wait(1s);
    EXPECT_THROW(work.source_rank(), ArgumentError);
  } else {
    const auto tensor = message(0);
    EXPECT_EQ(group.recv(tensor, 0, 3), 0);
    EXPECT_TRUE(tensor.eq(7).all().item<bool>());
    EXPECT_EQ(last_call(group).state, CallState::completed);
  }
});
TEST(ShortMessages, AreCompleteWhenTheSendReturns) {
  testing::expect_all_passed(testing::run_ranks(at_once));
}

// More than there are places for: the rest becomes calls under way, in order.
const testing::Scenario many("short: many", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto& group = context.group();
  constexpr int kCount = 40;
  if (context.rank() == 0) {
    std::vector<Work> works;
    for (int i = 0; i < kCount; ++i) works.push_back(group.send_async(message(i), 1));
    EXPECT_FALSE(works.back().is_completed());
    group.barrier();
    group.send(message(-1), 1, 1);
    for (auto& work : works) work.wait();
  } else {
    const auto tensor = message(0);
    group.barrier();
    group.recv(tensor, 0, 1);  // behind all the others
    EXPECT_TRUE(tensor.eq(-1).all().item<bool>());
    for (int i = 0; i < kCount; ++i) {
      i % 2 == 0 ? (void)group.recv(tensor, 0) : group.recv_async(tensor, 0).wait();
      EXPECT_TRUE(tensor.eq(i).all().item<bool>()) << i;
    }
  }
  group.barrier();
});
TEST(ShortMessages, WithoutAFreeSlotCompleteLater) { testing::expect_all_passed(testing::run_ranks(many)); }

// A receive from anybody takes what the one before it, from a certain rank, cannot.
const testing::Scenario any_source("short: any source", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto& group = context.group();
  const auto tensor = message(context.rank());
  if (context.rank() == 1) {
    std::vector<at::Tensor> got{message(-1), message(-1), message(-1)};
    auto of_zeroth = group.recv_async(got[0], 0);
    auto of_any = group.recv_async(got[1], std::nullopt);
    auto of_second = group.recv_async(got[2], 2);
    of_any.wait();
    EXPECT_EQ(of_any.source_rank(), 2);
    of_second.wait();
    EXPECT_FALSE(of_zeroth.is_completed());
    group.send(tensor, 0, 1);
    of_zeroth.wait();
    EXPECT_TRUE(got[0].eq(0).all().item<bool>());
    EXPECT_TRUE(got[1].eq(2).all().item<bool>());
    EXPECT_TRUE(got[2].eq(22).all().item<bool>());
  } else if (context.rank() == 2) {
    group.send(tensor, 1);
    group.send(message(22), 1);
  } else {
    group.recv(message(0), 1, 1);
    group.send(tensor, 1);
  }
});
TEST(ShortMessages, FromAnyRankPassReceivesFromOtherRanks) {
  testing::expect_all_passed(testing::run_ranks(any_source, {.world_size = 3}));
}

// Wrong arguments throw as they do for long messages.
const testing::Scenario wrong("short: wrong", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto& group = context.group();
  const auto tensor = message(0);
  EXPECT_THROW(group.send_async(tensor, context.rank()), ArgumentError);
  EXPECT_THROW(group.send_async(tensor, 2), ArgumentError);
  EXPECT_THROW(group.send_async(tensor, 1 - context.rank(), -1), ArgumentError);
  EXPECT_THROW(group.send_async({}, 1 - context.rank()), ArgumentError);
  group.barrier();
});
TEST(ShortMessages, ToInvalidRanksAreRejected) { testing::expect_all_passed(testing::run_ranks(wrong)); }

}  // namespace
}  // namespace lockstep::short_message_test
