// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
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

}  // namespace lockstep::bench
