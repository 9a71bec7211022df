// SPDX-License-Identifier: BSD-3-Clause
#include "device/block_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;

TEST(BlockPool, ReusesMemory) {
  BlockPool blocks(100 * kMiB);
  void* const first = blocks.allocate(20 * kMiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % BlockPool::kHugePage, 0U);
  std::memset(first, 1, 20 * kMiB);
  EXPECT_TRUE(blocks.owns(first));
  blocks.deallocate(first);
  EXPECT_FALSE(blocks.owns(first));
  EXPECT_EQ(blocks.idle_bytes(), 20 * kMiB);
  EXPECT_EQ(blocks.allocate(20 * kMiB - 100), first);
  EXPECT_EQ(blocks.idle_bytes(), 0U);
  blocks.deallocate(first);
}

TEST(BlockPool, SplitsAndMergesBlocks) {
  BlockPool blocks(1000 * kMiB);
  auto* const whole = static_cast<std::byte*>(blocks.allocate(100 * kMiB));
  blocks.deallocate(whole);
  std::vector<void*> parts;
  for (std::size_t i = 0; i < 5; ++i) {
    parts.push_back(blocks.allocate(20 * kMiB));
    EXPECT_EQ(parts.back(), whole + i * 20 * kMiB);
  }
  EXPECT_EQ(blocks.idle_bytes(), 0U);
  for (const std::size_t i : {1, 4, 0, 2, 3}) blocks.deallocate(parts[i]);
  EXPECT_EQ(blocks.allocate(100 * kMiB), whole);
  blocks.deallocate(whole);
}

TEST(BlockPool, UsesTheBestFit) {
  BlockPool blocks(1000 * kMiB);
  void* const longer = blocks.allocate(60 * kMiB);
  void* const between = blocks.allocate(2 * kMiB);  // separates the other two
  void* const exact = blocks.allocate(20 * kMiB);
  blocks.deallocate(longer);
  blocks.deallocate(exact);
  EXPECT_EQ(blocks.allocate(20 * kMiB), exact);
  EXPECT_EQ(blocks.allocate(20 * kMiB), longer);
  for (void* block : {exact, longer, between}) blocks.deallocate(block);
}

TEST(BlockPool, KeepsIdleBytesUpToTheLimit) {
  BlockPool blocks(50 * kMiB);
  auto* const whole = static_cast<std::byte*>(blocks.allocate(160 * kMiB));
  blocks.deallocate(whole);
  EXPECT_EQ(blocks.idle_bytes(), 50 * kMiB) << "only the excess of a block is unmapped";
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(blocks.allocate(20 * kMiB));
  for (void* block : all) blocks.deallocate(block);
  EXPECT_EQ(blocks.idle_bytes(), 50 * kMiB);
}

TEST(BlockPool, KeepsTheBlocksFreedLast) {
  BlockPool blocks(60 * kMiB);
  std::vector<void*> all;
  for (int i = 0; i < 9; ++i) all.push_back(blocks.allocate(20 * kMiB));
  for (const std::size_t i : {0, 2, 4, 6}) blocks.deallocate(all[i]);  // not adjacent
  std::vector<void*> kept;
  for (int i = 0; i < 3; ++i) kept.push_back(blocks.allocate(20 * kMiB));
  EXPECT_EQ(std::ranges::count(kept, all[0]), 0);
  for (const std::size_t i : {2, 4, 6}) EXPECT_EQ(std::ranges::count(kept, all[i]), 1);
  for (const std::size_t i : {1, 2, 3, 4, 5, 6, 7, 8}) blocks.deallocate(all[i]);
}

TEST(BlockPool, ReturnsNullWhenThereIsNoMemory) {
  BlockPool blocks(100 * kMiB);
  blocks.deallocate(blocks.allocate(20 * kMiB));
  EXPECT_EQ(blocks.allocate(std::numeric_limits<std::size_t>::max() / 4), nullptr);
  EXPECT_EQ(blocks.allocate(std::numeric_limits<std::size_t>::max()), nullptr);
  EXPECT_EQ(blocks.idle_bytes(), 0U) << "idle blocks are unmapped before an allocation fails";
}

TEST(BlockPool, IsThreadSafe) {
  BlockPool blocks(60 * kMiB);
  const auto work = [&](unsigned char mark) {
    for (int i = 0; i < 200; ++i) {
      const auto bytes = (2 + (i * 7 + mark) % 5 * 4) * kMiB;
      auto* const block = static_cast<unsigned char*>(blocks.allocate(bytes));
      for (std::size_t at = 0; at < bytes; at += kMiB) block[at] = mark;
      for (std::size_t at = 0; at < bytes; at += kMiB) ASSERT_EQ(block[at], mark);
      blocks.deallocate(block);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned char mark = 1; mark <= 4; ++mark) threads.emplace_back(work, mark);
  for (auto& thread : threads) thread.join();
  EXPECT_LE(blocks.idle_bytes(), 60 * kMiB);
}

}  // namespace
}  // namespace lockstep
