// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/heap.h"

#include <map>
#include <random>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::shm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kMegabyte = 1UL << 20U;

TEST(Heap, PiecesDoNotOverlapAndAreReused) {
  Heap heap(256 * kMegabyte);
  std::mt19937 random(1);
  std::map<std::byte*, std::size_t> pieces;
  for (int step = 0; step < 2000; ++step) {
    if (pieces.size() > 20 || (!pieces.empty() && random() % 2 == 0)) {
      const auto victim = std::next(pieces.begin(), static_cast<std::ptrdiff_t>(random() % pieces.size()));
      heap.free(victim->first);
      pieces.erase(victim);
      continue;
    }
    const std::size_t bytes = random() % (random() % 8 == 0 ? 5 * kMegabyte : 100'000);
    auto* const start = heap.allocate(bytes);
    const auto after = pieces.lower_bound(start);
    ASSERT_TRUE(after == pieces.end() || start + bytes <= after->first);
    ASSERT_TRUE(after == pieces.begin() || std::prev(after)->first + std::prev(after)->second <= start);
    pieces[start] = bytes;
  }
  EXPECT_LT(heap.committed(), 200 * kMegabyte);
}

TEST(Heap, FreedNeighboursAreMerged) {
  Heap heap(64 * kMegabyte);
  auto* const a = heap.allocate(8 * kMegabyte);
  auto* const b = heap.allocate(8 * kMegabyte);
  const auto before = heap.committed();
  heap.free(a);
  heap.free(b);
  EXPECT_EQ(heap.allocate(16 * kMegabyte), a);
  EXPECT_EQ(heap.committed(), before);
}

TEST(Heap, ReportsAShortageOfMemory) {
  Heap heap(4 * kMegabyte);
  EXPECT_THAT([&] { heap.allocate(8 * kMegabyte); }, ThrowsMessage<Error>(HasSubstr("memory is short")));
  EXPECT_NE(heap.allocate(kMegabyte), nullptr);
}

TEST(SharedMemory, AShortageIsAnErrorBeforeTheFirstAccess) {
  const auto too_much = 4 * total_memory();
  const auto memory = SharedMemory::create("test", too_much);  // address space only
  EXPECT_THAT([&] { memory.commit(0, too_much, "a test"); },
              ThrowsMessage<Error>(::testing::AllOf(HasSubstr("memory is short"), HasSubstr("a test"))));
}

// So that a rank keeps its page tables when its group is formed again.
TEST(SharedMemory, IsMappedOnceForAllWhoHoldIt) {
  const auto memory = SharedMemory::create("test", kMegabyte);
  const auto map = [](const SharedMemory& of) { return SharedMemory::map_once(UniqueFd(::dup(of.fd()))); };
  const auto first = map(memory);
  EXPECT_EQ(map(memory), first);
  EXPECT_NE(first->data(), memory.data());
  memory.data()[5] = std::byte{7};
  EXPECT_EQ(first->data()[5], std::byte{7});
  const auto other = SharedMemory::create("test", kMegabyte);
  EXPECT_NE(map(other), first);
  const std::weak_ptr<const SharedMemory> ended = map(other);
  EXPECT_TRUE(ended.expired());
}

}  // namespace
}  // namespace lockstep::shm
