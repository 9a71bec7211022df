// SPDX-License-Identifier: BSD-3-Clause
// Small blocking calls that are done on the spot are the same calls to the other ranks as those that are not.
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/shm/thread_team.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using Numbers = std::vector<std::int32_t>;

constexpr auto kLimit = 60s;
#ifdef __SANITIZE_THREAD__
constexpr int kCalls = 200;
#else
constexpr int kCalls = 1000;
#endif

Request request_for(Numbers& numbers) {
  if (numbers.empty()) return {.kind = Kind::barrier};
  return {.kind = Kind::all_reduce,
          .element = Element::i32,
          .outputs = {{reinterpret_cast<std::byte*>(numbers.data()), numbers.size() * sizeof(std::int32_t)}}};
}

Brief brief_for(const Request& request) {
  if (request.outputs.empty()) return {.what = packed(request)};
  return {.what = packed(request),
          .tensor = request.outputs.front(),
          .kernel = reduce_kernel(request.element, request.reduction),
          .width = size_of(request.element)};
}

// Whether it was done on the spot.
bool call_briefly(Engine& engine, Numbers& numbers) {
  const auto request = request_for(numbers);
  const auto make = [&] { return std::make_shared<Collective>(engine.team(), request); };
  const auto rest = engine.start_brief(brief_for(request), make, kLimit);
  if (rest) engine.wait(*rest, kLimit);
  return rest == nullptr;
}

Numbers numbers_of(int rank, int call, std::size_t count) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), rank * 1000 + call);
  return numbers;
}

void expect_sum(const Numbers& numbers, int size, int call) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto sum = size * (static_cast<int>(i) + call) + 1000 * size * (size - 1) / 2;
    if (numbers[i] != sum) throw std::runtime_error("call " + std::to_string(call) + " left wrong numbers");
  }
}

// Barriers and sums of all lengths that fit. Each rank draws by itself which of them it makes briefly, and
// which it leaves under way while it makes the next.
void mix(Engine& engine) {
  const auto& team = engine.team();
  std::mt19937 common(3);
  std::mt19937 own(static_cast<unsigned>(team.rank()));
  int on_the_spot = 0;
  for (int call = 0; call < kCalls; ++call) {
    const auto count = common() % 3 == 0 ? 0 : common() % (kSmallBytes / sizeof(std::int32_t) + 1);
    auto early = numbers_of(team.rank(), call, 10);
    auto late = numbers_of(team.rank(), call, count);
    std::shared_ptr<Collective> under_way;
    if (common() % 4 == 0) {
      under_way = std::make_shared<Collective>(team, request_for(early));
      engine.start(under_way, kLimit);
    }
    if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    if (own() % 4 != 0) {
      on_the_spot += call_briefly(engine, late) ? 1 : 0;
    } else {
      const auto ordinary = std::make_shared<Collective>(team, request_for(late));
      engine.start(ordinary, kLimit);
      engine.wait(*ordinary, kLimit);
    }
    expect_sum(late, team.size(), call);
    if (!under_way) continue;
    engine.wait(*under_way, kLimit);
    expect_sum(early, team.size(), call);
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

TEST(BriefCallsThatDiffer, EndOnAllRanksBeforeDataAreMixed) {
  std::array<Numbers, 2> numbers{numbers_of(0, 0, 8), numbers_of(1, 0, 9)};
  std::array<bool, 2> thrown{};
  ThreadTeam(2).run({}, [&](Engine& engine) {
    const auto rank = static_cast<std::size_t>(engine.team().rank());
    try {
      (void)call_briefly(engine, numbers[rank]);
    } catch (const DesyncError& error) {
      thrown[rank] = std::string(error.what()).find("all_reduce of 9 x i32") != std::string::npos;
    }
  });
  EXPECT_TRUE(thrown[0] && thrown[1]);
  EXPECT_EQ(numbers[0], numbers_of(0, 0, 8));
  EXPECT_EQ(numbers[1], numbers_of(1, 0, 9));
}

}  // namespace
}  // namespace lockstep::shm
