// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/zero_copy.h"

#include <algorithm>
#include <chrono>
#include <memory>
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

// Both ranks' inputs lie on their heaps; each has a part for each rank.
class DirectReads : public ::testing::Test {
 protected:
  static constexpr std::size_t kPart = std::size_t{1} << 16U;
  static constexpr std::size_t kBytes = kPart * sizeof(float);

  // Runs a call of this kind as both ranks, rank r's input being 1 + r everywhere. Returns the outputs.
  std::vector<std::vector<float>> run(Kind kind) {
    const bool scatters = kind == Kind::reduce_scatter;
    std::vector<std::vector<float>> outputs(2, std::vector<float>(scatters ? kPart : 2 * kPart));
    threads_.run({.tries = 4, .spin = std::chrono::microseconds(20)}, [&](Engine& engine) {
      const auto& communicator = engine.communicator();
      const auto rank = static_cast<std::size_t>(communicator.rank());
      auto* const input = communicator.heap(communicator.rank());
      std::fill_n(reinterpret_cast<float*>(input), scatters ? 2 * kPart : kPart,
                  1.F + static_cast<float>(rank));
      Request request{.kind = kind, .element = Element::f32, .inputs = {{input, kBytes}}};
      auto* const output = reinterpret_cast<std::byte*>(outputs[rank].data());
      request.outputs = {{output, kBytes}};
      if (scatters) {
        request.inputs.push_back({input + kBytes, kBytes});
      } else {
        request.outputs.push_back({output + kBytes, kBytes});
      }
      const auto call = std::make_shared<Collective>(communicator, request);
      engine.start(call, std::chrono::seconds(30));
      engine.wait(*call, std::chrono::seconds(30));
      EXPECT_EQ(communicator.own().staged.value.load(), 0) << "data went through a staging buffer";
    });
    return outputs;
  }

  ThreadTeam threads_{2};
};

TEST_F(DirectReads, AReduceScatterStagesNothing) {
  const auto outputs = run(Kind::reduce_scatter);
  for (const auto& output : outputs) EXPECT_EQ(std::ranges::count(output, 3.F), kPart);
}

TEST_F(DirectReads, AnAllGatherStagesNothing) {
  const auto outputs = run(Kind::all_gather);
  for (const auto& output : outputs) {
    EXPECT_EQ(std::ranges::count(output, 1.F), kPart);
    EXPECT_EQ(std::ranges::count(std::span(output).subspan(kPart), 2.F), kPart);
  }
}

TEST_F(DirectReads, ACallEndsWhenAllRanksHaveRead) {
  const Communicator first = threads_.communicator(0);
  const Communicator second = threads_.communicator(1);
  std::vector<float> output(kPart);
  Request request{.kind = Kind::reduce_scatter,
                  .element = Element::f32,
                  .inputs = {{first.heap(0), kBytes}, {first.heap(0) + kBytes, kBytes}},
                  .outputs = {{reinterpret_cast<std::byte*>(output.data()), kBytes}}};
  Plan plan;
  plan_small(request, 0, 2, plan);
  DirectRead zeroth(first, 1, {first.heap(0), first.heap(1)}, plan);
  DirectRead other(second, 1, {second.heap(0) + kBytes, second.heap(1) + kBytes}, plan);
  EXPECT_FALSE(zeroth.advance());
  EXPECT_EQ(zeroth.awaited(), std::vector{1});
  EXPECT_TRUE(other.advance());
  EXPECT_TRUE(zeroth.advance());
}

}  // namespace
}  // namespace lockstep::shm
