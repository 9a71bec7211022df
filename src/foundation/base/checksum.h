// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep {

// One step of checksum(). For a given word it is a bijection of the state, and for a given state one of the word. The
// first product spreads a bit to those above it, the shift to the lower half, and the second product from there.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t word) {
  auto value = (state ^ word) * 0x9E3779B97F4A7C15U;
  value ^= value >> 32U;
  return value * 0xD6E8FEB86659FD93U;
}

// A 64-bit checksum of memory, the same on machines of one byte order. It always changes when one aligned group of 8
// bytes changes, whatever the number of its bits: such a change reaches one lane, whose further steps are bijections,
// and the lanes are joined by bijections. Other changes stay unseen with a probability of about 2^-64. Not for
// contents that somebody chooses in order to deceive.
inline std::uint64_t checksum(const void* data, std::size_t bytes) {
  constexpr std::size_t kLanes = 4;  // as many multiplications as a core has in progress
  const auto* at = static_cast<const unsigned char*>(data);
  std::array<std::uint64_t, kLanes> lanes{1, 2, 3, 4};
  std::array<std::uint64_t, kLanes> words{};
  const auto* const end = at + bytes / sizeof(words) * sizeof(words);
  for (; at != end; at += sizeof(words)) {
    std::memcpy(words.data(), at, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  words = {};
  if (const auto rest = bytes % sizeof(words); rest != 0) std::memcpy(words.data(), at, rest);
  std::uint64_t result = bytes;
  for (std::size_t i = 0; i < kLanes; ++i) result = mixed(result, mixed(lanes[i], words[i]));
  return result;
}

}  // namespace lockstep
