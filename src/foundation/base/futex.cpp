// SPDX-License-Identifier: BSD-3-Clause
#include "base/futex.h"

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace lockstep {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::microseconds limit) {
  const timespec span{.tv_sec = limit.count() / 1'000'000, .tv_nsec = limit.count() % 1'000'000 * 1'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &span, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep
