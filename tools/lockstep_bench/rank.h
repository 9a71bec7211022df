// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of a benchmark do around a call, also those without LibTorch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace lockstep::bench {

// Binds this process to one of the cores that it may use: number `local_rank` modulo their count. Throws
// Error.
void bind_to_core(int local_rank);

// An all-reduce with MAX of one number.
using MaxOverRanks = std::function<std::int64_t(std::int64_t)>;

// Whether all ranks run on this host with a core each.
bool can_start_together(int ranks, int local_ranks, int cores);

// Synchronizes the ranks. With `by_clock` they return at the same time of their common clock: they leave a
// barrier at different times, and the first rank would add the difference to its call.
void start_together(const MaxOverRanks& max_over_ranks, bool by_clock);

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
