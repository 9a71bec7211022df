// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep {

// Sleeps while `word` holds `seen`, at most `limit`; may return early. The word may be in shared memory. See
// futex(2).
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::microseconds limit);

// Wakes every thread, of any process, that sleeps on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace lockstep
