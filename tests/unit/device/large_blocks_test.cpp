// SPDX-License-Identifier: BSD-3-Clause
#include "device/large_blocks.h"

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

TEST(LargeBlocks, GiveTheSameMemoryAgain) {
  LargeBlocks blocks(100 * kMiB);
  void* const first = blocks.take(20 * kMiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % LargeBlocks::kHugePage, 0U);
  std::memset(first, 1, 20 * kMiB);
  EXPECT_TRUE(blocks.has(first));
  blocks.give_back(first);
  EXPECT_FALSE(blocks.has(first));
  EXPECT_EQ(blocks.idle_bytes(), 20 * kMiB);
  EXPECT_EQ(blocks.take(20 * kMiB - 100), first);
  EXPECT_EQ(blocks.idle_bytes(), 0U);
  blocks.give_back(first);
}

TEST(LargeBlocks, AreCutAndJoined) {
  LargeBlocks blocks(1000 * kMiB);
  auto* const whole = static_cast<std::byte*>(blocks.take(100 * kMiB));
  blocks.give_back(whole);
  std::vector<void*> parts;
  for (std::size_t i = 0; i < 5; ++i) {
    parts.push_back(blocks.take(20 * kMiB));
    EXPECT_EQ(parts.back(), whole + i * 20 * kMiB);
  }
  EXPECT_EQ(blocks.idle_bytes(), 0U);
  for (const std::size_t i : {1, 4, 0, 2, 3}) blocks.give_back(parts[i]);
  EXPECT_EQ(blocks.take(100 * kMiB), whole);
  blocks.give_back(whole);
}

TEST(LargeBlocks, AreCutFromTheBestFit) {
  LargeBlocks blocks(1000 * kMiB);
  void* const longer = blocks.take(60 * kMiB);
  void* const between = blocks.take(2 * kMiB);  // so that they are no neighbours
  void* const exact = blocks.take(20 * kMiB);
  blocks.give_back(longer);
  blocks.give_back(exact);
  EXPECT_EQ(blocks.take(20 * kMiB), exact);
  EXPECT_EQ(blocks.take(20 * kMiB), longer);
  for (void* block : {exact, longer, between}) blocks.give_back(block);
}

TEST(LargeBlocks, KeepAsMuchAsTheirLimit) {
  LargeBlocks blocks(50 * kMiB);
  auto* const whole = static_cast<std::byte*>(blocks.take(160 * kMiB));
  blocks.give_back(whole);
  EXPECT_EQ(blocks.idle_bytes(), 50 * kMiB) << "of one block, too, only what is above goes";
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(blocks.take(20 * kMiB));
  for (void* block : all) blocks.give_back(block);
  EXPECT_EQ(blocks.idle_bytes(), 50 * kMiB);
}

TEST(LargeBlocks, KeepThoseThatWereUsedLast) {
  LargeBlocks blocks(60 * kMiB);
  std::vector<void*> all;
  for (int i = 0; i < 9; ++i) all.push_back(blocks.take(20 * kMiB));
  for (const std::size_t i : {0, 2, 4, 6}) blocks.give_back(all[i]);  // no neighbours
  std::vector<void*> kept;
  for (int i = 0; i < 3; ++i) kept.push_back(blocks.take(20 * kMiB));
  EXPECT_EQ(std::ranges::count(kept, all[0]), 0);
  for (const std::size_t i : {2, 4, 6}) EXPECT_EQ(std::ranges::count(kept, all[i]), 1);
  for (const std::size_t i : {1, 2, 3, 4, 5, 6, 7, 8}) blocks.give_back(all[i]);
}

TEST(LargeBlocks, SayWhenThereIsNoMemory) {
  LargeBlocks blocks(100 * kMiB);
  blocks.give_back(blocks.take(20 * kMiB));
  EXPECT_EQ(blocks.take(std::numeric_limits<std::size_t>::max() / 4), nullptr);
  EXPECT_EQ(blocks.take(std::numeric_limits<std::size_t>::max()), nullptr);
  EXPECT_EQ(blocks.idle_bytes(), 0U) << "idle blocks are given back before memory is missed";
}

TEST(LargeBlocks, ServeManyThreads) {
  LargeBlocks blocks(60 * kMiB);
  const auto work = [&](unsigned char mark) {
    for (int i = 0; i < 200; ++i) {
      const auto bytes = (2 + (i * 7 + mark) % 5 * 4) * kMiB;
      auto* const block = static_cast<unsigned char*>(blocks.take(bytes));
      for (std::size_t at = 0; at < bytes; at += kMiB) block[at] = mark;
      for (std::size_t at = 0; at < bytes; at += kMiB) ASSERT_EQ(block[at], mark);
      blocks.give_back(block);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned char mark = 1; mark <= 4; ++mark) threads.emplace_back(work, mark);
  for (auto& thread : threads) thread.join();
  EXPECT_LE(blocks.idle_bytes(), 60 * kMiB);
}

}  // namespace
}  // namespace lockstep
