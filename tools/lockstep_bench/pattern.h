// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::bench {

// The values that ranks put in repeat after so many elements.
constexpr std::int64_t kPeriod = 5;
// The elements of the block that refill() repeats: small enough to stay in the nearest cache, and short
// enough for memcpy to use plain stores, which leave the buffer in the cache like a program's own work does.
constexpr std::int64_t kBlock = kPeriod * 64;

// What `rank` has at `index`: small whole numbers, so that sums are exact in every type.
constexpr std::int64_t pattern_value(int rank, std::int64_t index) { return index % kPeriod + rank + 1; }

// Fills `bytes` at `target` with repetitions of a block.
inline void refill(void* target, std::size_t bytes, const void* block, std::size_t block_bytes) {
  auto* to = static_cast<char*>(target);
  for (std::size_t done = 0; done < bytes; done += block_bytes) {
    std::memcpy(to + done, block, std::min(block_bytes, bytes - done));
  }
}

}  // namespace lockstep::bench
