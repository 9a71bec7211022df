// SPDX-License-Identifier: BSD-3-Clause
// Random calls of random sizes with random delays, waited for in random order: whatever the timing, every
// rank ends up with the right numbers. Meant to be run under ThreadSanitizer too.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "unit/shm/random_calls.h"
#include "unit/shm/thread_communicator.h"

namespace lockstep::shm::stress_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 60s;

#ifdef __SANITIZE_THREAD__
constexpr int kCalls = 150;
#else
constexpr int kCalls = 600;
#endif

// A call under way.
struct Running {
  Part part;
  std::shared_ptr<Collective> call;
};

std::unique_ptr<Running> start(Engine& engine, const Drawn& drawn, int number, std::size_t& heap_end) {
  auto running = std::make_unique<Running>(prepare(engine.communicator(), drawn, number, heap_end), nullptr);
  running->call = std::make_shared<Collective>(engine.communicator(), running->part.request);
  engine.start(running->call, kLimit);
  return running;
}

void stress(Engine& engine, unsigned seed) {
  Random common(seed);                                                            // the same on all ranks
  Random own(seed + 1000 + static_cast<unsigned>(engine.communicator().rank()));  // another on each
  std::vector<std::pair<int, std::unique_ptr<Running>>> under_way;
  std::size_t heap_end = 0;
  const auto finish_some = [&](std::size_t left) {
    std::ranges::shuffle(under_way, own);
    while (under_way.size() > left) {
      const auto& [number, running] = under_way.back();
      engine.wait(*running->call, kLimit);
      running->part.check(number);
      under_way.pop_back();
    }
    if (under_way.empty()) heap_end = 0;
  };
  for (int number = 0; number < kCalls; ++number) {
    const auto drawn = draw(common, engine.communicator().size(), {4, 100, 3000, 30'000, 300'000});
    const auto most = std::uniform_int_distribution<std::size_t>(0, 40)(common);  // more than there are slots
    if (common() % 16 == 0) finish_some(0);
    under_way.emplace_back(number, start(engine, drawn, number, heap_end));
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    if (under_way.size() > most) finish_some(own() % (most + 1));
  }
  finish_some(0);
}

class Stress : public ::testing::TestWithParam<std::tuple<int, unsigned>> {};

TEST_P(Stress, EveryRankGetsTheCorrectValues) {
  const auto [size, seed] = GetParam();
  const ThreadTeam ranks(size);
  const std::array policies{WaitPolicy{.tries = 4, .spin = 20us}, WaitPolicy::for_cores(size, 1),
                            WaitPolicy::beside_network(size, 1)};
  ranks.run(policies.at(seed - 1), [seed = seed](Engine& engine) { stress(engine, seed); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Stress,
                         ::testing::Combine(::testing::Values(1, 2, 3, 8), ::testing::Values(1U, 2U, 3U)));

// Messages of all lengths with few tags, received in an order that differs from the one of sending.
void exchange(Engine& engine, unsigned seed) {
  Random common(seed);
  const int rank = engine.communicator().rank();
  const int size = engine.communicator().size();
  constexpr std::size_t kMost = 5;  // less than a channel holds, so that none has to be parked
  for (int round = 0; round < kCalls / 10; ++round) {
    std::vector<std::size_t> lengths(kMost);
    for (auto& length : lengths)
      length = common() % (common() % 2 == 0 ? 100'000 : 10'000);  // many chunks, or few
    std::vector<std::pair<std::shared_ptr<Transfer>, Numbers>> sent;
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    sent.reserve(kMost);
    for (std::size_t i = 0; i < kMost; ++i) {
      sent.emplace_back(nullptr, values(rank, static_cast<int>(i), 0, lengths[i]));
      auto& [call, numbers] = sent.back();
      const auto tag = static_cast<std::int64_t>(i);
      const auto what = source(numbers, 0, numbers.size());
      const bool at_once = common() % 2 == 0 && what.bytes <= kMessageChunkBytes;
      if (at_once && engine.send_at_once(next, tag, Element::i32, what, 0)) continue;
      const Engine::Lock lock(engine);
      call =
          std::make_shared<Send>(engine.communicator(), engine.mailbox(), next, tag, Element::i32, what, 0);
      engine.start(call);
    }
    for (std::size_t i = kMost; i-- > 0;) {
      Numbers numbers(lengths[i]);
      const auto tag = static_cast<std::int64_t>(i);
      const auto place = target(numbers, 0, numbers.size());
      const int from = i % 2 == 0 ? before : -1;
      const bool soon = common() % 2 == 0 && place.bytes <= kMessageChunkBytes;
      const bool shortly = common() % 2 == 0;
      Receive brief(engine.communicator(), engine.mailbox(), from, tag, Element::i32, place);
      if (!soon || !engine.receive_soon(brief, [] {})) {
        std::shared_ptr<Transfer> call;
        {
          const Engine::Lock lock(engine);
          call = std::make_shared<Receive>(engine.communicator(), engine.mailbox(), from, tag, Element::i32,
                                           place);
          engine.start(call);
        }
        if (shortly || !engine.wait_shortly(*call)) engine.wait(*call, kLimit);
      }
      if (numbers != values(before, static_cast<int>(i), 0, lengths[i]))
        throw std::runtime_error("a wrong message");
    }
    for (auto& [call, numbers] : sent) {
      if (call) engine.wait(*call, kLimit);
    }
  }
}

TEST(StressOfMessages, ArriveCompleteAndByTag) {
  for (const int size : {2, 3}) {
    for (const auto& policy : {WaitPolicy::for_cores(size, 1), WaitPolicy::beside_network(size, 1)})
      ThreadTeam(size).run(policy, [](Engine& engine) { exchange(engine, 5); });
  }
}

// Short messages with two tags, sent while the other rank goes through receives that wait for them.
class InOrder {
 public:
  explicit InOrder(Engine& engine) : engine_(engine) {}

  void exchange(int first) {
    calls_.clear();
    engine_.communicator().rank() == 0 ? send(first) : receive(first);
  }

 private:
  static constexpr int kCount = 2 * static_cast<int>(kMessages);
  static constexpr int kGo = 2;

  void send(int first) {
    start<Receive>(1, kGo, target(go_, 0, 1));
    wait();
    for (int i = 0; i < kCount; ++i) {
      auto& buffer = buffers_[static_cast<std::size_t>(i)] = values(0, first + i, 0, 4);
      const auto what = source(buffer, 0, 4);
      if (!engine_.send_at_once(1, i % 2, Element::i32, what, 0))
        start<Send>(1, i % 2, what, std::uint64_t{0});
    }
    wait();
  }

  void receive(int first) {
    for (int i = 0; i < kCount; ++i)
      start<Receive>(0, i % 2, target(buffers_[static_cast<std::size_t>(i)], 0, 4));
    ASSERT_TRUE(engine_.send_at_once(0, kGo, Element::i32, source(go_, 0, 1), 0));
    wait();
    for (int i = 0; i < kCount; ++i)
      ASSERT_EQ(buffers_[static_cast<std::size_t>(i)], values(0, first + i, 0, 4)) << "message " << i;
  }

  template <class Kind, class... Rest>
  void start(int peer, int tag, Rest... rest) {
    const Engine::Lock lock(engine_);
    calls_.push_back(
        std::make_shared<Kind>(engine_.communicator(), engine_.mailbox(), peer, tag, Element::i32, rest...));
    engine_.start(calls_.back());
  }

  void wait() {
    for (const auto& call : calls_) engine_.wait(*call, kLimit);
  }

  Engine& engine_;
  Numbers go_ = Numbers(1);
  std::vector<Numbers> buffers_ = std::vector<Numbers>(kCount, Numbers(4));
  std::vector<std::shared_ptr<Transfer>> calls_;
};

TEST(MessagesWithOneTag, ArriveInTheOrderOfTheSends) {
  ThreadTeam(2).run({}, [](Engine& engine) {
    InOrder messages(engine);
    for (int round = 0; round < 20 * kCalls && !::testing::Test::HasFatalFailure(); ++round)
      messages.exchange(100 * round);
  });
}

// A channel full of messages that nobody wants yet does not hold up the one that is wanted, whatever their
// length: they are received in the opposite order.
class Unwanted : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Unwanted, MessagesAreParked) {
  ThreadTeam(2).run({}, [](Engine& engine) {
    constexpr std::size_t kCount = 3 * kMessages;
    const auto length = [](std::size_t i) { return GetParam() + i % 3; };
    std::vector<Numbers> buffers;
    std::vector<std::shared_ptr<Transfer>> calls;
    for (std::size_t i = 0; i < kCount; ++i) {
      buffers.push_back(values(0, static_cast<int>(i), 0, length(i)));
      if (engine.communicator().rank() != 0) continue;
      const Engine::Lock lock(engine);
      calls.push_back(std::make_shared<Send>(engine.communicator(), engine.mailbox(), 1,
                                             static_cast<std::int64_t>(i), Element::i32,
                                             source(buffers[i], 0, length(i)), 0));
      engine.start(calls.back());
    }
    for (std::size_t i = kCount; engine.communicator().rank() == 1 && i-- > 0;) {
      const auto expected = std::exchange(buffers[i], Numbers(length(i)));
      std::shared_ptr<Transfer> call;
      {
        const Engine::Lock lock(engine);
        call = std::make_shared<Receive>(engine.communicator(), engine.mailbox(), i % 2 == 0 ? 0 : -1,
                                         static_cast<std::int64_t>(i), Element::i32,
                                         target(buffers[i], 0, length(i)));
        engine.start(call);
      }
      engine.wait(*call, kLimit);
      EXPECT_EQ(buffers[i], expected);
    }
    for (const auto& call : calls) engine.wait(*call, kLimit);
  });
}

// Numbers of a message; a chunk holds 8192, a channel four chunks of a message.
INSTANTIATE_TEST_SUITE_P(Lengths, Unwanted, ::testing::Values(0, 10, 8192, 4 * 8192, 300'000));

}  // namespace
}  // namespace lockstep::shm::stress_test
