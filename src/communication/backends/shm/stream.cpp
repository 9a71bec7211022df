// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/stream.h"

#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep::shm {
namespace {

constexpr std::size_t kStreamedCopy = std::size_t{8} << 20U;

}  // namespace

#ifdef __SSE2__
bool can_stream(const std::byte* to) { return reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i) == 0; }

void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + sizeof(__m128i) <= bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  std::memcpy(to + i, from + i, bytes - i);
}

void end_stream() { _mm_sfence(); }
#else
bool can_stream(const std::byte* /*to*/) { return false; }
void stream(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void end_stream() {}
#endif

void copy_part(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole) {
  if (whole < kStreamedCopy || !can_stream(to)) {
    std::memcpy(to, from, bytes);
    return;
  }
  stream(to, from, bytes);
  end_stream();
}

}  // namespace lockstep::shm
