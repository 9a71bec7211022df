// SPDX-License-Identifier: BSD-3-Clause
// A wait for which several things are wrong at once reports the cause.
#include "comm/peer_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

struct News {
  bool refused = true;
  int dead = 1;
  bool left = true;
  bool late = true;
  bool done = false;
  bool done_needs_left = true;  // whether it does after is_done() has advanced the call
  mutable bool advanced = false;

  bool is_refused() const { return refused; }
  int find_dead() const { return dead; }
  bool has_left() const { return left && (!advanced || done_needs_left); }
  bool is_late() const { return late; }
  bool is_done() const {
    advanced = true;
    return done;
  }
};

PeerFault fault_of(const News& news) { return check_peers(news).fault; }

TEST(PeerCheck, TheCauseComesFirst) {
  EXPECT_EQ(fault_of({}), PeerFault::refused);
  EXPECT_EQ(check_peers(News{.refused = false}).rank, 1);
  EXPECT_EQ(fault_of({.refused = false}), PeerFault::dead);
  EXPECT_EQ(fault_of({.refused = false, .dead = -1}), PeerFault::left);
  EXPECT_EQ(fault_of({.refused = false, .dead = -1, .left = false}), PeerFault::late);
  EXPECT_EQ(fault_of({.refused = false, .dead = -1, .left = false, .late = false}), PeerFault::none);
}

TEST(PeerCheck, ACallThatHasEndedSucceeds) { EXPECT_EQ(fault_of({.done = true}), PeerFault::none); }

TEST(PeerCheck, ARankThatHasDoneItsPartMayLeave) {
  EXPECT_EQ(fault_of({.refused = false, .dead = -1, .late = false, .done_needs_left = false}),
            PeerFault::none);
}

TEST(PeerCheck, IsDueOnceAPeriod) {
  const auto before = PeerCheckTimer::Clock::now();
  PeerCheckTimer timer;
  const auto later = PeerCheckTimer::Clock::now() + kPeerCheckPeriod;
  EXPECT_FALSE(timer.is_due(before + kPeerCheckPeriod / 2));
  EXPECT_TRUE(timer.is_due(later));
  EXPECT_FALSE(timer.is_due(later));
  EXPECT_TRUE(timer.is_due(later + kPeerCheckPeriod));
}

}  // namespace
}  // namespace lockstep::comm
