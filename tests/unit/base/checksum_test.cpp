// SPDX-License-Identifier: BSD-3-Clause
#include "base/checksum.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<unsigned char> bytes(std::size_t count) {
  std::vector<unsigned char> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<unsigned char>(i * 37 + 11);
  return all;
}

// Sizes around a word and around a row of lanes.
TEST(Checksum, ChangesWithEveryBit) {
  for (const std::size_t size : {1U, 3U, 8U, 31U, 32U, 33U, 64U, 100U}) {
    auto data = bytes(size);
    std::set<std::uint64_t> seen{checksum(data.data(), size)};
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      data[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
      EXPECT_TRUE(seen.insert(checksum(data.data(), size)).second)
          << "bit " << bit << " of " << size << " bytes";
      data[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
    }
    EXPECT_TRUE(seen.contains(checksum(data.data(), size)));
  }
}

// Even in one lane, where the second could undo what the first has left.
TEST(Checksum, ChangesWithEveryTwoBits) {
  auto data = bytes(64);
  const auto flip = [&](std::size_t bit) { data[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8)); };
  std::set<std::uint64_t> seen{checksum(data.data(), data.size())};
  for (std::size_t one = 0; one < 8 * data.size(); ++one) {
    flip(one);
    for (std::size_t other = one + 1; other < 8 * data.size(); ++other) {
      flip(other);
      ASSERT_TRUE(seen.insert(checksum(data.data(), data.size())).second) << one << " and " << other;
      flip(other);
    }
    flip(one);
  }
}

TEST(Checksum, ChangesWithTheLengthAndTheOrder) {
  const std::vector<unsigned char> zeros(128);
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size <= zeros.size(); ++size)
    EXPECT_TRUE(seen.insert(checksum(zeros.data(), size)).second) << size;
  auto data = bytes(96);
  const auto before = checksum(data.data(), data.size());
  for (const std::size_t other : {8U, 32U, 40U}) {
    for (std::size_t i = 0; i < 8; ++i) std::swap(data[i], data[other + i]);
    EXPECT_NE(checksum(data.data(), data.size()), before) << other;
    for (std::size_t i = 0; i < 8; ++i) std::swap(data[i], data[other + i]);
  }
}

TEST(Checksum, DoesNotDependOnThePlaceInMemory) {
  const auto data = bytes(77);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::vector<unsigned char> copy(shift);
    copy.insert(copy.end(), data.begin(), data.end());
    EXPECT_EQ(checksum(copy.data() + shift, data.size()), checksum(data.data(), data.size()));
  }
}

}  // namespace
}  // namespace lockstep
