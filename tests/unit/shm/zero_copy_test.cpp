// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backends/shm/collective.h"
#include "backends/shm/communicator.h"
#include "unit/shm/random_calls.h"
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
            -1,
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

// Calls of one kind whose data all ranks have on their heaps, or in ordinary memory.
class WhereItLies : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr int kRanks = 3;
  static constexpr std::size_t kCount = 40'000;

  // Makes `calls` calls, checks their results, and returns how many of them used staging buffers.
  static int staged_calls(Engine& engine, bool on_heap, int calls) {
    const auto& communicator = engine.communicator();
    int staged = 0;
    for (int number = 0; number < calls; ++number) {
      std::size_t heap_end = 0;
      const auto before = communicator.own().staged.value.load();
      const auto part =
          prepare(communicator, {.kind = GetParam(), .count = kCount, .root = 1, .on_heap = on_heap}, number,
                  heap_end);
      const auto call = std::make_shared<Collective>(communicator, part.request);
      engine.start(call, std::chrono::seconds(30));
      engine.wait(*call, std::chrono::seconds(30));
      part.check(number);
      if (communicator.own().staged.value.load() != before) ++staged;
    }
    return staged;
  }

  void run(const std::function<void(Engine&)>& body) const {
    threads_.run({.tries = 4, .spin = std::chrono::microseconds(20)}, body);
  }

  ThreadTeam threads_{kRanks};
};

TEST_P(WhereItLies, OnHeapsNothingIsStaged) {
  run([](Engine& engine) { EXPECT_EQ(staged_calls(engine, true, 2), 0); });
}

TEST_P(WhereItLies, InOrdinaryMemoryDataOfOneReaderIsStagedInTheFirstCallOnly) {
  const bool has_one_reader = GetParam() == Kind::scatter || GetParam() == Kind::all_to_all;
  run([=](Engine& engine) { EXPECT_EQ(staged_calls(engine, false, 3), has_one_reader ? 1 : 3); });
}

TEST_P(WhereItLies, OrdinaryMemoryThatOneRankCannotReadIsStaged) {
  run([](Engine& engine) {
    if (engine.communicator().rank() == 2) engine.communicator().own().token ^= 1U;
    EXPECT_EQ(staged_calls(engine, false, 3), 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, WhereItLies,
                         ::testing::Values(Kind::all_reduce, Kind::broadcast, Kind::reduce, Kind::all_gather,
                                           Kind::gather, Kind::scatter, Kind::reduce_scatter,
                                           Kind::all_to_all),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

// Both ranks' inputs lie on their heaps; each has a part for each rank.
class DirectReads : public ::testing::Test {
 protected:
  static constexpr std::size_t kPart = std::size_t{1} << 16U;
  static constexpr std::size_t kBytes = kPart * sizeof(float);

  static Plan plan_of(const Request& request, int rank) {
    Plan plan;
    plan_small(request, rank, 2, plan);
    return plan;
  }
  static Request on_heap(Kind kind, const Communicator& communicator) {
    return {
        .kind = kind, .element = Element::f32, .outputs = {{communicator.heap(communicator.rank()), kBytes}}};
  }
  Request into_output(Kind kind, int root) {
    return {.kind = kind, .element = Element::f32, .root = root, .outputs = {output()}};
  }
  Target output() { return {reinterpret_cast<std::byte*>(output_.data()), kBytes}; }

  ThreadTeam threads_{2};
  const Communicator first_ = threads_.communicator(0), second_ = threads_.communicator(1);
  std::vector<float> output_ = std::vector<float>(kPart);
};

// Of more than 2 MiB, which are not a multiple of any block, at addresses with and without alignment.
TEST_F(DirectReads, ALongReduceScatterHasTheSums) {
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
    const auto plan = plan_of(request, 0);
    const auto row = [](const std::vector<float>& floats) {
      return Row{.mapped = reinterpret_cast<const std::byte*>(floats.data())};
    };
    DirectRead(first_, 1, {row(ours), row(theirs)}, {1}, plan).advance();
    for (std::size_t i = 0; i < kLong; ++i) ASSERT_EQ(output[start + i], 3.F * static_cast<float>(i)) << i;
    EXPECT_EQ(std::accumulate(output.begin() + static_cast<std::ptrdiff_t>(start + kLong), output.end(), 0.F),
              0.F);
  }
}

TEST_F(DirectReads, ACallEndsWhenAllRanksHaveRead) {
  const auto plan = plan_of({.kind = Kind::reduce_scatter,
                             .element = Element::f32,
                             .inputs = {{first_.heap(0), kBytes}, {first_.heap(0) + kBytes, kBytes}},
                             .outputs = {output()}},
                            0);
  DirectRead zeroth(first_, 1, {{first_.heap(0)}, {first_.heap(1)}}, {1}, plan);
  DirectRead other(second_, 1, {{second_.heap(0) + kBytes}, {second_.heap(1) + kBytes}}, {0}, plan);
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
    EXPECT_TRUE(run_into(Kind::all_to_all, parts, {{input, kBytes}, {input + kBytes, kBytes}}));
    EXPECT_EQ(std::ranges::count(values.last(kPart), 2.F), kPart);
    EXPECT_EQ(std::ranges::count(values.first(kPart), 1.F), kPart);
  });
}

TEST_F(DirectReads, OnlyTheRankWhoseDataIsReadWaits) {
  std::uint64_t chunks = 0;
  Collective root(first_, on_heap(Kind::broadcast, first_));
  Collective leaf(second_, on_heap(Kind::broadcast, second_));
  root.post(1, chunks);
  leaf.post(1, chunks);
  EXPECT_FALSE(root.advance());
  EXPECT_EQ(root.awaited(), std::vector{1});
  EXPECT_TRUE(leaf.advance());
  EXPECT_TRUE(root.advance());
}

TEST_F(DirectReads, ARankDoesNotTrustTheDataOfOneThatHasLeft) {
  const auto plan = plan_of(into_output(Kind::broadcast, 0), 1);
  DirectRead leaf(second_, 1, {{first_.heap(0)}, {}}, {}, plan);
  first_.own().left.store(1);
  EXPECT_FALSE(leaf.advance());
  EXPECT_EQ(leaf.awaited(), std::vector{0});
  EXPECT_EQ(second_.own().read.value.load(), 0);
}

// It was late itself, so the report names nobody.
TEST_F(DirectReads, ARankThatComesAfterAVerdictAwaitsNobody) {
  const auto plan = plan_of(into_output(Kind::broadcast, 1), 0);
  DirectRead late(first_, 1, {{}, {first_.heap(1)}}, {}, plan);
  first_.fail(GroupFailure::Cause::timeout, 0, 0);
  EXPECT_FALSE(late.advance());
  EXPECT_TRUE(late.awaited().empty());
}

TEST_F(DirectReads, MemoryThatIsRefusedLaterEndsTheGroup) {
  offer_memory(second_);
  second_.own().process = 1;  // no address of it is mapped here, or it may not be read
  const auto plan = plan_of(into_output(Kind::scatter, 1), 0);
  DirectRead call(first_, 1, {{}, {.address = 8}}, {}, plan);
  EXPECT_FALSE(call.advance());
  ASSERT_NE(first_.failure(), nullptr);
  EXPECT_EQ(first_.failure()->cause, GroupFailure::Cause::memory_refused);
  EXPECT_EQ(first_.failure()->culprit, 1);
}

// Its parts may be claimed by another rank after its memory has been freed.
TEST_F(DirectReads, AReductionDoesNotEndIfARankHasLeftIt) {
  std::uint64_t chunks = 0;
  Collective root(first_, on_heap(Kind::reduce, first_));
  Collective other(second_, on_heap(Kind::reduce, second_));
  root.post(1, chunks);
  other.post(1, chunks);
  second_.own().left.store(1);
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(root.advance());
  EXPECT_EQ(root.awaited(), std::vector{1});
}

// One part of each rank is on its heap, one in ordinary memory.
TEST_F(DirectReads, PartsMayLieInDifferentMemories) {
  threads_.run({.tries = 4, .spin = std::chrono::microseconds(20)}, [&](Engine& engine) {
    const auto& communicator = engine.communicator();
    const auto rank = static_cast<float>(communicator.rank());
    auto* const on_heap = communicator.heap(communicator.rank());
    std::vector<float> ordinary(kPart, 10.F + rank), output(2 * kPart);
    std::fill_n(reinterpret_cast<float*>(on_heap), kPart, 20.F + rank);
    auto* const to = reinterpret_cast<std::byte*>(output.data());
    std::uint64_t staged = 0;
    for (int number = 0; number < 2; ++number) {
      staged = communicator.own().staged.value.load();
      const auto call = std::make_shared<Collective>(
          communicator,
          Request{.kind = Kind::all_to_all,
                  .element = Element::f32,
                  .inputs = {{on_heap, kBytes}, {reinterpret_cast<std::byte*>(ordinary.data()), kBytes}},
                  .outputs = {{to, kBytes}, {to + kBytes, kBytes}}});
      engine.start(call, std::chrono::seconds(30));
      engine.wait(*call, std::chrono::seconds(30));
      const float base = communicator.rank() == 0 ? 20.F : 10.F;
      EXPECT_EQ(std::ranges::count(std::span(output).first(kPart), base), kPart);
      EXPECT_EQ(std::ranges::count(std::span(output).last(kPart), base + 1.F), kPart);
    }
    EXPECT_EQ(communicator.own().staged.value.load(), staged);
  });
}

// A rank that has given up may use its tensor for something else, so what was read of it cannot be trusted.
TEST_F(DirectReads, ACallThatAnotherRankGaveUpDoesNotEnd) {
  const auto call_of = [&](const Communicator& communicator, Kind kind) {
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
    auto& late = calls.emplace_back(second_, call_of(second_, kind));
    auto& early = calls.emplace_back(first_, call_of(first_, kind));
    late.post(number, chunks);
    early.post(number, chunks);
    EXPECT_FALSE(early.advance());
  }
  first_.fail(GroupFailure::Cause::timeout, 1, 0);
  EXPECT_FALSE(calls[0].advance());
  EXPECT_FALSE(calls[2].advance());
}

}  // namespace
}  // namespace lockstep::shm
