// SPDX-License-Identifier: BSD-3-Clause
// Calls on the eager path are the same calls to the other ranks as those that are not.
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/shm/random_calls.h"
#include "unit/shm/thread_communicator.h"

namespace lockstep::shm::eager_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 60s;
#ifdef __SANITIZE_THREAD__
constexpr int kCalls = 200;
#else
constexpr int kCalls = 1000;
#endif

// Whether the eager path completed it.
bool call_eagerly(Engine& engine, const Request& request) {
  const auto fill = [&](Request& asked) { asked = request; };
  const auto make = [&](Request asked) {
    return std::make_shared<Collective>(engine.communicator(), std::move(asked));
  };
  const auto rest = engine.start_eager(
      fill, make, [](bool) {}, kLimit);
  if (rest) engine.wait(*rest, kLimit);
  return rest == nullptr;
}

// Calls of all kinds, small ones most of all, and some of them too long for one rank only. Each rank draws by
// itself which of them it makes eagerly, and which it leaves under way while it makes the next.
void mix(Engine& engine) {
  const auto& communicator = engine.communicator();
  Random common(3);
  Random own(static_cast<unsigned>(communicator.rank()));
  constexpr std::size_t kFull = kSmallBytes / sizeof(std::int32_t);
  const std::vector<std::size_t> most{1, 20, 300, kFull / 8, kFull, kFull + 4};
  std::size_t heap_end = ThreadTeam::kHeapBytes;  // none of it
  int completed = 0;
  for (int call = 0; call < kCalls; ++call) {
    const auto early = prepare(communicator, draw(common, communicator.size(), most), call, heap_end);
    const auto late = prepare(communicator, draw(common, communicator.size(), most), call, heap_end);
    std::shared_ptr<Collective> under_way;
    if (common() % 4 == 0) {
      under_way = std::make_shared<Collective>(communicator, early.request);
      engine.start(under_way, kLimit);
    }
    if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    if (own() % 4 != 0) {
      completed += call_eagerly(engine, late.request) ? 1 : 0;
    } else {
      const auto ordinary = std::make_shared<Collective>(communicator, late.request);
      engine.start(ordinary, kLimit);
      engine.wait(*ordinary, kLimit);
    }
    late.check(call);
    if (!under_way) continue;
    engine.wait(*under_way, kLimit);
    early.check(call);
  }
  if (completed == 0) throw std::runtime_error("the eager path completed no call");
}

class EagerCalls : public ::testing::TestWithParam<int> {};

TEST_P(EagerCalls, MatchNormalCalls) {
  const int size = GetParam();
  const WaitPolicy wait_policy{.tries = 16, .spin = 2ms, .yields = 50, .nap = 5ms};
  ThreadTeam(size).run(wait_policy, mix);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EagerCalls, ::testing::Values(1, 2, 3));

// The ranks' numbers after a call in which rank 1 asks for what `second` makes of it, and whether all of them
// threw.
struct Quarrel {
  std::array<Numbers, 2> numbers;
  std::array<std::string, 2> told;
};

template <class Second>
Quarrel quarrel(const Second& second) {
  Quarrel result{{Numbers(8, 1), Numbers(9, 2)}, {}};
  ThreadTeam(2).run({}, [&](Engine& engine) {
    const auto rank = static_cast<std::size_t>(engine.communicator().rank());
    auto& numbers = result.numbers[rank];
    Request request{
        .kind = Kind::all_reduce, .element = Element::i32, .outputs = {target(numbers, 0, numbers.size())}};
    if (rank == 1) second(request);
    try {
      (void)call_eagerly(engine, request);
    } catch (const DesyncError& error) {
      result.told[rank] = error.what();
    }
  });
  return result;
}

void expect_unmixed(const Quarrel& result, const std::string& difference) {
  EXPECT_EQ(result.numbers[0], Numbers(8, 1));
  EXPECT_EQ(result.numbers[1], Numbers(9, 2));
  for (const auto& told : result.told) EXPECT_NE(told.find(difference), std::string::npos) << told;
}

TEST(EagerCallsThatDiffer, FailOnAllRanksBeforeDataIsMixed) {
  expect_unmixed(quarrel([](Request&) {}), "rank 1: all_reduce of 9 x i32");
  expect_unmixed(quarrel([](Request& request) { request.kind = Kind::broadcast; }),
                 "rank 1: broadcast of 9 x i32");
}

TEST(EagerCallsThatDiffer, AreFoundFromTheExpectedSizes) {
  std::array<Numbers, 2> input{Numbers(3, 1), Numbers(3, 2)};
  std::array<Numbers, 2> output{Numbers(6), Numbers(6)};
  std::array<bool, 2> told{};
  ThreadTeam(2).run({}, [&](Engine& engine) {
    const auto rank = static_cast<std::size_t>(engine.communicator().rank());
    // Rank 0 expects two numbers of rank 1, which has three.
    const std::size_t theirs = rank == 0 ? 2 : 3;
    const Request request{.kind = Kind::all_gather,
                          .element = Element::i32,
                          .inputs = {source(input[rank], 0, 3)},
                          .outputs = {target(output[rank], 0, 3), target(output[rank], 3, theirs)}};
    try {
      (void)call_eagerly(engine, request);
    } catch (const DesyncError&) {
      told[rank] = true;
    }
  });
  EXPECT_TRUE(told[0] && told[1]);
  EXPECT_EQ(output[0], Numbers(6));
  EXPECT_EQ(output[1], Numbers(6));
}

}  // namespace
}  // namespace lockstep::shm::eager_test
