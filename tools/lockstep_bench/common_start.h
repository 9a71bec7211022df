// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::bench {

/// The largest of all ranks' numbers, on every rank: an all-reduce.
using Largest = std::function<std::int64_t(std::int64_t)>;

/// Whether ranks can begin at the same time: all run on this host, and each may have one of `cores` to
/// itself.
bool can_begin_together(int ranks, int local_ranks, int cores);

/// Brings the ranks together; then, where they can, all of them return at the same time by the clock that
/// they share. From a barrier they come one after the other, by about as much as a short call takes, and the
/// first of them would count that to the call.
void begin_together(const Largest& largest, bool by_clock);

}  // namespace lockstep::bench
