// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/zero_copy.h"

#include <algorithm>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "unit/shm/thread_communicator.h"

namespace lockstep::shm {
namespace {

// Two ranks, in one thread, that have posted an all-reduce of tensors on their heaps.
class InPlaceOfTwo : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = std::size_t{1} << 18U;

  InPlaceOfTwo() {
    std::ranges::fill(tensor(0), 1.F);
    std::ranges::fill(tensor(1), 2.F);
  }

  std::span<float> tensor(int rank) { return {reinterpret_cast<float*>(teams_[0].heap(rank)), kCount}; }

  // Elements of both ranks' tensors in one rank's share that hold the sum.
  std::size_t reduced_in_share_of(int owner) {
    const auto begin = kCount / 2 * static_cast<std::size_t>(owner);
    std::size_t count = 0;
    for (int rank = 0; rank < 2; ++rank) {
      count += static_cast<std::size_t>(std::ranges::count(tensor(rank).subspan(begin, kCount / 2), 3.F));
    }
    return count;
  }

  ZeroCopy as_rank(int rank) {
    const auto& communicator = teams_[static_cast<std::size_t>(rank)];
    return {communicator,
            1,
            {communicator.heap(0), communicator.heap(1)},
            kCount * sizeof(float),
            sizeof(float),
            reduce_kernel(Element::f32, Reduction::sum)};
  }

  ThreadTeam threads_{2};
  std::vector<Communicator> teams_{threads_.communicator(0), threads_.communicator(1)};
};

TEST_F(InPlaceOfTwo, ARankReducesOnlyItsOwnShare) {
  auto first = as_rank(0);
  auto second = as_rank(1);
  EXPECT_FALSE(first.advance());
  EXPECT_EQ(reduced_in_share_of(0), kCount);
  EXPECT_EQ(reduced_in_share_of(1), 0);
  EXPECT_EQ(first.awaited(), std::vector{1});
  EXPECT_TRUE(second.advance());
  EXPECT_EQ(reduced_in_share_of(1), kCount);
  EXPECT_TRUE(first.advance());
}

TEST_F(InPlaceOfTwo, AWaitingRankReducesTheShareOfABusyRank) {
  auto first = as_rank(0);
  bool done = false;
  for (int look = 0; look < 100 && !done; ++look) done = first.advance();
  EXPECT_TRUE(done);
  EXPECT_EQ(reduced_in_share_of(0), kCount);
  EXPECT_EQ(reduced_in_share_of(1), kCount);
  EXPECT_TRUE(as_rank(1).advance());
  EXPECT_EQ(reduced_in_share_of(1), kCount);
}

}  // namespace
}  // namespace lockstep::shm
