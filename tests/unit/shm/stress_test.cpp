// SPDX-License-Identifier: BSD-3-Clause
// Random calls of random sizes with random delays, waited for in random order: whatever the timing, every
// rank ends up with the right numbers. Meant to be run under ThreadSanitizer too.
#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "unit/shm/thread_team.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using Numbers = std::vector<std::int32_t>;
using Random = std::mt19937;

constexpr auto kLimit = 60s;

#ifdef __SANITIZE_THREAD__
constexpr int kCalls = 150;
#else
constexpr int kCalls = 600;
#endif

Source source(const Numbers& numbers, std::size_t begin, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(numbers.data() + begin), count * sizeof(std::int32_t)};
}

Target target(Numbers& numbers, std::size_t begin, std::size_t count) {
  return {reinterpret_cast<std::byte*>(numbers.data() + begin), count * sizeof(std::int32_t)};
}

std::int32_t value(int rank, int call, std::size_t index) {
  return static_cast<std::int32_t>(index * 7 + static_cast<std::size_t>(rank) * 1000 +
                                   static_cast<std::size_t>(call));
}

// One call, as all ranks draw it from the same numbers.
struct Drawn {
  Kind kind = Kind::barrier;
  std::size_t count = 0;  // elements of a rank's tensor or part
  int root = 0;
  bool on_heap = false;
};

Drawn draw(Random& random, int size) {
  constexpr std::size_t most[] = {4, 100, 3000, 30'000, 300'000};
  const auto limit = most[std::uniform_int_distribution<std::size_t>(0, 4)(random)];
  return {.kind = static_cast<Kind>(std::uniform_int_distribution<int>(0, 8)(random)),
          .count = std::uniform_int_distribution<std::size_t>(0, limit)(random),
          .root = std::uniform_int_distribution<int>(0, size - 1)(random),
          .on_heap = std::uniform_int_distribution<int>(0, 1)(random) == 1};
}

// A call under way, with its buffers and what must be in them afterwards.
struct Running {
  std::shared_ptr<Collective> call;
  Numbers input;
  Numbers output;
  Numbers expected;
  std::int32_t* heap = nullptr;

  void check(int number) const {
    if (expected.empty()) return;
    const auto* actual = heap != nullptr ? heap : output.data();
    if (!std::equal(expected.begin(), expected.end(), actual)) {
      throw std::runtime_error("call " + std::to_string(number) + " (" + call->describe() +
                               ") left wrong numbers");
    }
  }
};

Numbers sum_of_all(int size, int call, std::size_t begin, std::size_t count) {
  Numbers sum(count);
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += value(rank, call, begin + i);
  }
  return sum;
}

Numbers values(int rank, int call, std::size_t begin, std::size_t count) {
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = value(rank, call, begin + i);
  return numbers;
}

void append(Numbers& to, const Numbers& more) { to.insert(to.end(), more.begin(), more.end()); }

std::unique_ptr<Running> start(Engine& engine, const Drawn& drawn, int number, std::size_t& heap_end) {
  const auto& team = engine.team();
  const int rank = team.rank();
  const int size = team.size();
  const auto ranks = static_cast<std::size_t>(size);
  const auto n = drawn.count;
  auto running = std::make_unique<Running>();
  auto& [call, input, output, expected, heap] = *running;
  Request request{.kind = drawn.kind, .element = Element::i32, .root = drawn.root};
  const bool is_root = rank == drawn.root;
  switch (drawn.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      output = values(rank, number, 0, n);
      if (drawn.kind == Kind::all_reduce || is_root) expected = sum_of_all(size, number, 0, n);
      request.outputs = {target(output, 0, n)};
      if (drawn.kind == Kind::all_reduce && drawn.on_heap && heap_end + n * 4 <= ThreadTeam::kHeapBytes) {
        heap = reinterpret_cast<std::int32_t*>(team.heap(rank) + heap_end);
        std::ranges::copy(output, heap);
        request.outputs = {{reinterpret_cast<std::byte*>(heap), n * 4}};
        heap_end += (n * 4 + 63) / 64 * 64;
      }
      break;
    case Kind::broadcast:
      output = values(rank, number, 0, n);
      expected = values(drawn.root, number, 0, n);
      request.outputs = {target(output, 0, n)};
      break;
    case Kind::all_gather:
    case Kind::gather: {
      // Each rank brings another number of elements.
      const auto length = [&](std::size_t of) { return n + of; };
      input = values(rank, number, 0, length(static_cast<std::size_t>(rank)));
      request.inputs = {source(input, 0, input.size())};
      if (drawn.kind == Kind::gather && !is_root) break;
      output.resize(ranks * n + ranks * ranks);
      std::size_t begin = 0;
      for (std::size_t from = 0; from < ranks; ++from) {
        request.outputs.push_back(target(output, begin, length(from)));
        append(expected, values(static_cast<int>(from), number, 0, length(from)));
        begin += length(from);
      }
      break;
    }
    case Kind::scatter:
      output.resize(n);
      expected = values(drawn.root, number, static_cast<std::size_t>(rank) * n, n);
      request.outputs = {target(output, 0, n)};
      if (!is_root) break;
      input = values(rank, number, 0, n * ranks);
      for (std::size_t to = 0; to < ranks; ++to) request.inputs.push_back(source(input, to * n, n));
      break;
    case Kind::reduce_scatter:
      input = values(rank, number, 0, n * ranks);
      output.resize(n);
      expected = sum_of_all(size, number, static_cast<std::size_t>(rank) * n, n);
      for (std::size_t to = 0; to < ranks; ++to) request.inputs.push_back(source(input, to * n, n));
      request.outputs = {target(output, 0, n)};
      break;
    case Kind::all_to_all: {
      // From rank a to rank b go n + a elements, which begin at b * (n + a).
      const auto own = n + static_cast<std::size_t>(rank);
      input = values(rank, number, 0, own * ranks);
      output.resize(ranks * n + ranks * ranks);
      std::size_t begin = 0;
      for (std::size_t other = 0; other < ranks; ++other) {
        request.inputs.push_back(source(input, other * own, own));
        const auto theirs = n + other;
        request.outputs.push_back(target(output, begin, theirs));
        append(expected,
               values(static_cast<int>(other), number, static_cast<std::size_t>(rank) * theirs, theirs));
        begin += theirs;
      }
      break;
    }
    case Kind::barrier:
      break;
  }
  call = std::make_shared<Collective>(team, std::move(request));
  engine.start(call, kLimit);
  return running;
}

void stress(Engine& engine, unsigned seed) {
  Random common(seed);                                                    // the same on all ranks
  Random own(seed + 1000 + static_cast<unsigned>(engine.team().rank()));  // another on each
  std::vector<std::pair<int, std::unique_ptr<Running>>> under_way;
  std::size_t heap_end = 0;
  const auto finish_some = [&](std::size_t left) {
    std::ranges::shuffle(under_way, own);
    while (under_way.size() > left) {
      const auto& [number, running] = under_way.back();
      engine.wait(*running->call, kLimit);
      running->check(number);
      under_way.pop_back();
    }
    if (under_way.empty()) heap_end = 0;
  };
  for (int number = 0; number < kCalls; ++number) {
    const auto drawn = draw(common, engine.team().size());
    const auto most = std::uniform_int_distribution<std::size_t>(0, 40)(common);  // more than there are slots
    if (common() % 16 == 0) finish_some(0);
    under_way.emplace_back(number, start(engine, drawn, number, heap_end));
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    if (under_way.size() > most) finish_some(own() % (most + 1));
  }
  finish_some(0);
}

class Stress : public ::testing::TestWithParam<std::tuple<int, unsigned>> {};

TEST_P(Stress, EveryRankGetsTheRightNumbers) {
  const auto [size, seed] = GetParam();
  const ThreadTeam ranks(size);
  const auto patience = seed % 2 == 0 ? Patience::for_cores(size, 1) : Patience{.tries = 4, .spin = 20us};
  ranks.run(patience, [seed = seed](Engine& engine) { stress(engine, seed); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Stress,
                         ::testing::Combine(::testing::Values(1, 2, 3, 8), ::testing::Values(1U, 2U)));

// Messages of all lengths with few tags, received in another order than they were sent in.
void exchange(Engine& engine, unsigned seed) {
  Random common(seed);
  const int rank = engine.team().rank();
  const int size = engine.team().size();
  constexpr std::size_t kMost = 5;  // less than a channel holds, so that none has to be parked
  for (int round = 0; round < kCalls / 10; ++round) {
    std::vector<std::size_t> lengths(kMost);
    for (auto& length : lengths) length = common() % 100'000;
    std::vector<std::pair<std::shared_ptr<Transfer>, Numbers>> sent;
    std::vector<std::pair<std::shared_ptr<Transfer>, Numbers>> received;
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    sent.reserve(kMost);
    received.reserve(kMost);
    for (std::size_t i = 0; i < kMost; ++i) {
      sent.emplace_back(nullptr, values(rank, static_cast<int>(i), 0, lengths[i]));
      auto& [call, numbers] = sent.back();
      const std::lock_guard lock(engine.mutex());
      call = std::make_shared<Send>(engine.team(), engine.mailbox(), next, static_cast<std::int64_t>(i),
                                    Element::i32, source(numbers, 0, numbers.size()), 0);
      engine.start(call);
    }
    for (std::size_t i = kMost; i-- > 0;) {
      received.emplace_back(nullptr, Numbers(lengths[i]));
      auto& [call, numbers] = received.back();
      {
        const std::lock_guard lock(engine.mutex());
        call = std::make_shared<Receive>(engine.team(), engine.mailbox(), i % 2 == 0 ? before : -1,
                                         static_cast<std::int64_t>(i), Element::i32,
                                         target(numbers, 0, numbers.size()));
        engine.start(call);
      }
      engine.wait(*call, kLimit);
      if (numbers != values(before, static_cast<int>(i), 0, lengths[i]))
        throw std::runtime_error("a wrong message");
    }
    for (auto& [call, numbers] : sent) engine.wait(*call, kLimit);
  }
}

TEST(StressOfMessages, ArriveWholeAndByTag) {
  for (const int size : {2, 3}) {
    ThreadTeam(size).run(Patience::for_cores(size, 1), [](Engine& engine) { exchange(engine, 5); });
  }
}

// A channel full of messages that nobody wants yet does not hold up the one that is wanted.
TEST(Messages, UnwantedOnesAreParked) {
  ThreadTeam(2).run({}, [](Engine& engine) {
    constexpr std::size_t kCount = 3 * kMessages;
    std::vector<Numbers> buffers(kCount, Numbers(10));
    std::vector<std::shared_ptr<Transfer>> calls;
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::lock_guard lock(engine.mutex());
      if (engine.team().rank() == 0) {
        buffers[i] = values(0, static_cast<int>(i), 0, 10);
        calls.push_back(std::make_shared<Send>(engine.team(), engine.mailbox(), 1,
                                               static_cast<std::int64_t>(i), Element::i32,
                                               source(buffers[i], 0, 10), 0));
        engine.start(calls.back());
      }
    }
    for (std::size_t i = kCount; engine.team().rank() == 1 && i-- > 0;) {
      std::shared_ptr<Transfer> call;
      {
        const std::lock_guard lock(engine.mutex());
        call = std::make_shared<Receive>(engine.team(), engine.mailbox(), 0, static_cast<std::int64_t>(i),
                                         Element::i32, target(buffers[i], 0, 10));
        engine.start(call);
      }
      engine.wait(*call, kLimit);
      EXPECT_EQ(buffers[i], values(0, static_cast<int>(i), 0, 10));
    }
    for (const auto& call : calls) engine.wait(*call, kLimit);
  });
}

}  // namespace
}  // namespace lockstep::shm
