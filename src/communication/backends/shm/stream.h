// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>

#include "backends/shm/layout.h"

namespace lockstep::shm {

// Stores that go past the caches. An ordinary store first reads its line from memory, and drives other data
// out of the caches.

// Whether this processor can write there with stream().
bool can_stream(const std::byte* to);
// Copies without overlap. Call end_stream() before the data is published.
void stream(std::byte* to, const std::byte* from, std::size_t bytes);
void end_stream();

// Copies a part of `whole` bytes that the caller copies, without overlap: past the caches if the whole would
// not stay there until its reader comes.
void copy_part(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole);

inline constexpr std::size_t kPrefetched = 1024;  // bytes of the next call's or message's data

// Moves ownership of the cache line to this core before a write, which would otherwise wait for the transfer
// of the line between the cores.
inline void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Prefetches the first kPrefetched of `bytes` bytes.
inline void prefetch_for_write(const std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < std::min(bytes, kPrefetched); at += kLine) prefetch_for_write(data + at);
}

}  // namespace lockstep::shm
