// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace lockstep::shm {

// Where data of a rank lies for the other ranks, in one word: an offset in its heap, which they map, or an
// address in its process, which they may be able to read. 0: nowhere that they can read it.
enum class Memory : std::uint8_t { unreachable, heap, process };

constexpr std::uint64_t place(Memory memory, std::uint64_t at) {
  return at << 2U | static_cast<std::uint64_t>(memory);  // an address has 57 bits at most
}
constexpr Memory memory_of(std::uint64_t place) { return static_cast<Memory>(place & 3U); }
constexpr std::uint64_t offset_of(std::uint64_t place) { return place >> 2U; }

}  // namespace lockstep::shm
