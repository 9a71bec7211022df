// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/zero_copy.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
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

// Of more than 2 MiB, which are not a multiple of any block, at addresses with and without alignment.
TEST_F(DirectReads, ALongReduceScatterHasTheSums) {
  const Communicator first = threads_.communicator(0);
  constexpr std::size_t kLong = (std::size_t{1} << 19U) + 3;
  std::vector<float> ours(2 * kLong), theirs(kLong), output(kLong + 2);
  for (std::size_t i = 0; i < kLong; ++i) ours[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < kLong; ++i) theirs[i] = static_cast<float>(2 * i);
  const auto part = [](std::span<float> floats) {
    return Target{reinterpret_cast<std::byte*>(floats.data()), kLong * sizeof(float)};
  };
  for (const std::size_t start : {0, 1, 2}) {
    std::ranges::fill(output, 0.F);
    const auto halves = std::span(ours);
    Request request{.kind = Kind::reduce_scatter, .element = Element::f32};
    for (const auto& half : {part(halves.first(kLong)), part(halves.last(kLong))})
      request.inputs.push_back({half.data, half.bytes});
    request.outputs = {part(std::span(output).subspan(start))};
    Plan plan;
    plan_small(request, 0, 2, plan);
    DirectRead(first, 1, {ours.data(), theirs.data()}, plan).advance();
    for (std::size_t i = 0; i < kLong; ++i) ASSERT_EQ(output[start + i], 3.F * static_cast<float>(i)) << i;
    EXPECT_EQ(std::accumulate(output.begin() + static_cast<std::ptrdiff_t>(start + kLong), output.end(), 0.F),
              0.F);
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

// Another rank would read its part after this rank has written its output there.
TEST_F(DirectReads, AnOutputOverAnotherRanksPartIsStaged) {
  threads_.run({.tries = 4, .spin = std::chrono::microseconds(20)}, [&](Engine& engine) {
    const auto& communicator = engine.communicator();
    auto* const input = communicator.heap(communicator.rank());
    const std::span values(reinterpret_cast<float*>(input), 2 * kPart);
    const auto run_into = [&](Kind kind, std::vector<Source> inputs, std::vector<Target> outputs) {
      std::ranges::fill(values, 1.F + static_cast<float>(communicator.rank()));
      const auto staged = communicator.own().staged.value.load();
      const auto call = std::make_shared<Collective>(communicator, Request{.kind = kind,
                                                                           .element = Element::f32,
                                                                           .inputs = std::move(inputs),
                                                                           .outputs = std::move(outputs)});
      engine.start(call, std::chrono::seconds(30));
      engine.wait(*call, std::chrono::seconds(30));
      return communicator.own().staged.value.load() > staged;
    };
    const std::vector<Source> parts{{input, kBytes}, {input + kBytes, kBytes}};
    auto* const own = input + static_cast<std::size_t>(communicator.rank()) * kBytes;
    EXPECT_FALSE(run_into(Kind::reduce_scatter, parts, {{own, kBytes}})) << "in place";
    EXPECT_EQ(std::ranges::count(std::span(reinterpret_cast<float*>(own), kPart), 3.F), kPart);
    EXPECT_TRUE(run_into(Kind::reduce_scatter, parts, {{input, kBytes}}));
    EXPECT_EQ(std::ranges::count(values.first(kPart), 3.F), kPart);
    EXPECT_FALSE(run_into(Kind::all_gather, {{own, kBytes}}, {{input, kBytes}, {input + kBytes, kBytes}}))
        << "in place";
    EXPECT_EQ(std::ranges::count(values.last(kPart), 2.F), kPart);
    EXPECT_EQ(std::ranges::count(values.first(kPart), 1.F), kPart);
    EXPECT_TRUE(run_into(Kind::all_gather, {{input, kBytes}}, {{input, kBytes}, {input + kBytes, kBytes}}));
  });
}

// A rank that has given up may use its tensor for something else, so what was read of it cannot be trusted.
TEST_F(DirectReads, ACallThatAnotherRankGaveUpDoesNotEnd) {
  std::vector<Communicator> teams{threads_.communicator(0), threads_.communicator(1)};
  const auto call_of = [&](std::size_t rank, Kind kind) {
    const auto& communicator = teams[rank];
    auto* const start = communicator.heap(communicator.rank());
    const Source first{start, kBytes}, second{start + kBytes, kBytes};
    const Target output{start + 2 * kBytes, kBytes};
    if (kind == Kind::all_reduce) return Request{.kind = kind, .outputs = {output}};
    return Request{.kind = kind, .inputs = {first, second}, .outputs = {output}};
  };
  std::uint64_t chunks = 0;
  std::deque<Collective> calls;
  for (const auto kind : {Kind::reduce_scatter, Kind::all_reduce}) {
    const auto number = calls.size() / 2 + 1;
    auto& late = calls.emplace_back(teams[1], call_of(1, kind));
    auto& early = calls.emplace_back(teams[0], call_of(0, kind));
    late.post(number, chunks);
    early.post(number, chunks);
    EXPECT_FALSE(early.advance());
  }
  teams[0].fail(GroupFailure::Cause::timeout, 1, 0);
  EXPECT_FALSE(calls[0].advance());
  EXPECT_FALSE(calls[2].advance());
}

}  // namespace
}  // namespace lockstep::shm
