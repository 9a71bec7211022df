// SPDX-License-Identifier: BSD-3-Clause
// Small blocking calls that are done on the spot are the same calls to the other ranks as those that are not.
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/shm/random_calls.h"
#include "unit/shm/thread_team.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 60s;
#ifdef __SANITIZE_THREAD__
constexpr int kCalls = 200;
#else
constexpr int kCalls = 1000;
#endif

// Whether it was done on the spot.
bool call_briefly(Engine& engine, const Request& request) {
  const auto fill = [&](Request& asked) { asked = request; };
  const auto make = [&](Request asked) {
    return std::make_shared<Collective>(engine.team(), std::move(asked));
  };
  const auto rest = engine.start_brief(
      fill, [] {}, make, kLimit);
  if (rest) engine.wait(*rest, kLimit);
  return rest == nullptr;
}

// Calls of all kinds, small ones most of all, and some of them too long for one rank only. Each rank draws by
// itself which of them it makes briefly, and which it leaves under way while it makes the next.
void mix(Engine& engine) {
  const auto& team = engine.team();
  Random common(3);
  Random own(static_cast<unsigned>(team.rank()));
  constexpr std::size_t kFull = kSmallBytes / sizeof(std::int32_t);
  const std::vector<std::size_t> most{1, 20, 300, kFull / 8, kFull, kFull + 4};
  std::size_t heap_end = ThreadTeam::kHeapBytes;  // none of it
  int on_the_spot = 0;
  for (int call = 0; call < kCalls; ++call) {
    const auto early = prepare(team, draw(common, team.size(), most), call, heap_end);
    const auto late = prepare(team, draw(common, team.size(), most), call, heap_end);
    std::shared_ptr<Collective> under_way;
    if (common() % 4 == 0) {
      under_way = std::make_shared<Collective>(team, early.request);
      engine.start(under_way, kLimit);
    }
    if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    if (own() % 4 != 0) {
      on_the_spot += call_briefly(engine, late.request) ? 1 : 0;
    } else {
      const auto ordinary = std::make_shared<Collective>(team, late.request);
      engine.start(ordinary, kLimit);
      engine.wait(*ordinary, kLimit);
    }
    late.check(call);
    if (!under_way) continue;
    engine.wait(*under_way, kLimit);
    early.check(call);
  }
  if (on_the_spot == 0) throw std::runtime_error("no call was done on the spot");
}

class BriefCalls : public ::testing::TestWithParam<int> {};

TEST_P(BriefCalls, AreTheSameCallsAsOthers) {
  const int size = GetParam();
  const Patience patience{.tries = 16, .spin = 2ms, .yields = 50, .nap = 5ms};
  ThreadTeam(size).run(patience, mix);
}

INSTANTIATE_TEST_SUITE_P(Ranks, BriefCalls, ::testing::Values(1, 2, 3));

// The ranks' numbers after a call in which rank 1 asks for what `second` makes of it, and whether all of them
// were told.
struct Quarrel {
  std::array<Numbers, 2> numbers;
  std::array<std::string, 2> told;
};

template <class Second>
Quarrel quarrel(const Second& second) {
  Quarrel result{{Numbers(8, 1), Numbers(9, 2)}, {}};
  ThreadTeam(2).run({}, [&](Engine& engine) {
    const auto rank = static_cast<std::size_t>(engine.team().rank());
    auto& numbers = result.numbers[rank];
    Request request{
        .kind = Kind::all_reduce, .element = Element::i32, .outputs = {target(numbers, 0, numbers.size())}};
    if (rank == 1) second(request);
    try {
      (void)call_briefly(engine, request);
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

TEST(BriefCallsThatDiffer, EndOnAllRanksBeforeDataAreMixed) {
  expect_unmixed(quarrel([](Request&) {}), "rank 1: all_reduce of 9 x i32");
  expect_unmixed(quarrel([](Request& request) { request.kind = Kind::broadcast; }),
                 "rank 1: broadcast of 9 x i32");
}

TEST(BriefCallsThatDiffer, AreFoundInWhatEachRankExpectsOfTheOthers) {
  std::array<Numbers, 2> input{Numbers(3, 1), Numbers(3, 2)};
  std::array<Numbers, 2> output{Numbers(6), Numbers(6)};
  std::array<bool, 2> told{};
  ThreadTeam(2).run({}, [&](Engine& engine) {
    const auto rank = static_cast<std::size_t>(engine.team().rank());
    // Rank 0 expects two numbers of rank 1, which has three.
    const std::size_t theirs = rank == 0 ? 2 : 3;
    const Request request{.kind = Kind::all_gather,
                          .element = Element::i32,
                          .inputs = {source(input[rank], 0, 3)},
                          .outputs = {target(output[rank], 0, 3), target(output[rank], 3, theirs)}};
    try {
      (void)call_briefly(engine, request);
    } catch (const DesyncError&) {
      told[rank] = true;
    }
  });
  EXPECT_TRUE(told[0] && told[1]);
  EXPECT_EQ(output[0], Numbers(6));
  EXPECT_EQ(output[1], Numbers(6));
}

}  // namespace
}  // namespace lockstep::shm
