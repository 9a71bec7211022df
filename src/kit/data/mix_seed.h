// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <initializer_list>

namespace lockstep::data {

// The output function of SplitMix64, chained over the parts.
inline std::uint64_t mix_seed(std::uint64_t base, std::initializer_list<std::int64_t> parts) {
  const auto mixed = [](std::uint64_t value) {
    value += 0x9e3779b97f4a7c15U;
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31U);
  };
  auto seed = mixed(base);
  for (const auto part : parts) seed = mixed(seed ^ static_cast<std::uint64_t>(part));
  return seed;
}

}  // namespace lockstep::data
