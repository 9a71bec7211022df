// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

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

}  // namespace lockstep::shm
