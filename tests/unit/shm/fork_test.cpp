// SPDX-License-Identifier: BSD-3-Clause
// A forked child of a rank does nothing in its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/base/child.h"
#include "unit/shm/thread_communicator.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::Child;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kForkLimit = 60s;
constexpr WaitPolicy kNapping{.tries = 1, .spin = 0us, .yields = 0, .nap = 1ms};

std::shared_ptr<Collective> start_barrier(Engine& engine) {
  auto barrier = std::make_shared<Collective>(engine.communicator(), Request{.kind = Kind::barrier});
  engine.start(barrier, kForkLimit);
  return barrier;
}

// Rank 0 of two, in a barrier that could end since rank 1 has come, but nobody advances it.
class Fork : public ::testing::Test {
 protected:
  std::uint64_t completed() const {
    return ranks_.communicator(0).own().completed.value.load(std::memory_order_acquire);
  }

  ThreadTeam ranks_{2};
  Engine engine_{ranks_.communicator(0), kNapping};
  std::shared_ptr<Collective> barrier_ = start_barrier(engine_);
  Engine other_{ranks_.communicator(1), kNapping};
  std::shared_ptr<Collective> others_ = start_barrier(other_);
};

TEST_F(Fork, AChildDoesNotWaitForTheCallsOfItsParent) {
  Child child([&] {
    EXPECT_TRUE(engine_.test(*barrier_));
    EXPECT_THAT([&] { engine_.wait(*barrier_, kForkLimit); },
                ThrowsMessage<Error>(HasSubstr("was forked off")));
    engine_.abort();
    return !::testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.passed());
  EXPECT_EQ(completed(), 0U);
  engine_.wait(*barrier_, kForkLimit);
  EXPECT_EQ(completed(), 1U);
}

TEST_F(Fork, AWaitOfAChildDoesNotAdvanceTheCallsOfItsParent) {
  Child child([&] {
    const ThreadTeam ranks(2);
    Engine engine(ranks.communicator(0), kNapping);
    const auto barrier = start_barrier(engine);
    EXPECT_THROW(engine.wait(*barrier, 50ms), TimeoutError);
    return !::testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.passed());
  EXPECT_EQ(completed(), 0U);
  engine_.wait(*barrier_, kForkLimit);
}

}  // namespace
}  // namespace lockstep::shm
