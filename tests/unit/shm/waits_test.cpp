// SPDX-License-Identifier: BSD-3-Clause
// Waits that cannot end well end soon, also those that give way to others on a machine with more to do than
// cores.
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/shm/thread_communicator.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kLimit = 60s;
// One that would not come to its nap within the test's life.
constexpr WaitPolicy kGivingWay{
    .tries = 1, .spin = 0us, .yields = std::numeric_limits<int>::max(), .nap = 1ms};

// Rank 0 of two, in a barrier to which rank 1 does not come.
class LoneWait {
 public:
  explicit LoneWait(RankObserver news = {}) : engine_(ranks_.communicator(0, std::move(news)), kGivingWay) {
    engine_.start(barrier_, kLimit);
  }
  void wait() { engine_.wait(*barrier_, kLimit); }
  // Until it is time to wait.
  void poll() {
    while (!engine_.test(*barrier_)) std::this_thread::yield();
  }
  Communicator other() const { return ranks_.communicator(1); }

 private:
  ThreadTeam ranks_{2};
  Engine engine_;
  std::shared_ptr<Collective> barrier_ =
      std::make_shared<Collective>(engine_.communicator(), Request{.kind = Kind::barrier});
};

RankObserver of_a_death() {
  return {.find_dead = [] { return 1; }};
}

TEST(Waits, ThatYieldDetectLostRanks) {
  LoneWait rank(of_a_death());
  EXPECT_THAT([&] { rank.wait(); }, ThrowsMessage<PeerLost>(HasSubstr("rank 1 died")));
}

TEST(Waits, ARefusalIsReportedBeforeADeath) {
  auto news = of_a_death();
  news.is_refused = [] { return true; };
  LoneWait rank(news);
  EXPECT_THAT([&] { rank.wait(); }, ThrowsMessage<DesyncError>(HasSubstr("refuses")));
}

TEST(Waits, ThatPollLeaveARefusalToOthers) {
  auto news = of_a_death();
  news.is_refused = [] { return true; };
  LoneWait rank(news);
  rank.poll();  // ends by the death, which is recorded
  EXPECT_THAT([&] { rank.wait(); }, ThrowsMessage<PeerLost>(HasSubstr("rank 1 died")));
}

TEST(Waits, ThatPollDetectLostRanks) {
  LoneWait rank(of_a_death());
  rank.poll();
  EXPECT_THAT([&] { rank.wait(); }, ThrowsMessage<PeerLost>(HasSubstr("rank 1 died")));
}

TEST(Waits, ThatYieldDetectAFailure) {
  LoneWait rank;
  rank.other().fail(GroupFailure::Cause::aborted, 1, 0);
  EXPECT_THAT([&] { rank.wait(); }, ThrowsMessage<Error>(HasSubstr("rank 1 aborted the group")));
}

TEST(Waits, NameTheLostRankIfARankDiedWhileWritingItsVerdict) {
  LoneWait rank(of_a_death());
  rank.other().control_block(0).failure.state = 1;  // begun
  EXPECT_THAT([&] { rank.wait(); }, ThrowsMessage<PeerLost>(HasSubstr("rank 1 died")));
}

}  // namespace
}  // namespace lockstep::shm
