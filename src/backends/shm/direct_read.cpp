// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/direct_read.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep::shm {
namespace {

// Results of this size are written past the caches: an ordinary store first reads its line from memory, and
// drives the inputs out of the caches.
constexpr std::size_t kStreamedBytes = std::size_t{2} << 20U;
constexpr std::size_t kBlockBytes = std::size_t{16} << 10U;  // stays in the nearest cache

using Block = std::array<std::byte, kBlockBytes>;

#ifdef __SSE2__
bool can_stream(const std::byte* to) { return reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i) == 0; }

void stream(std::byte* to, const Block& block, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + sizeof(__m128i) <= bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(block.data() + i)));
  }
  std::memcpy(to + i, block.data() + i, bytes - i);
}

void end_stream() { _mm_sfence(); }
#else
bool can_stream(const std::byte* /*to*/) { return false; }
void stream(std::byte* /*to*/, const Block& /*block*/, std::size_t /*bytes*/) {}
void end_stream() {}
#endif

}  // namespace

DirectRead::DirectRead(const Communicator& communicator, std::uint64_t number, std::vector<const void*> rows,
                       const Plan& plan)
    : communicator_(communicator), number_(number), rows_(std::move(rows)), plan_(plan) {}

bool DirectRead::advance() {
  if (!std::exchange(has_read_, true)) {
    read();
    communicator_.own().shares[number_ % kSlots].done.store(1, std::memory_order_release);
    communicator_.ring();
  }
  return awaited().empty();
}

void DirectRead::read() {
  if (plan_.kernel != nullptr) return reduce();
  const int size = communicator_.size();
  take_own(plan_, communicator_.rank());
  // Each rank starts at its neighbour, so that not all read one rank's memory at the same time.
  for (int step = 1; step < size; ++step) {
    const auto from = static_cast<std::size_t>((communicator_.rank() + step) % size);
    std::memcpy(plan_.take[from].data, rows_[from], plan_.take[from].bytes);
  }
}

void DirectRead::reduce() {
  const auto [to, bytes] = plan_.result;
  if (bytes < kStreamedBytes || to == plan_.own.data || !can_stream(to)) {
    void* const out = to;
    plan_.kernel(&out, 1, rows_.data(), communicator_.size(), bytes / plan_.width);
    return;
  }
  alignas(kLine) Block block;
  void* const out = block.data();
  for (std::size_t start = 0; start < bytes; start += kBlockBytes) {
    const auto length = std::min(kBlockBytes, bytes - start);
    plan_.kernel(&out, 1, rows_.data(), communicator_.size(), length / plan_.width);
    stream(to + start, block, length);
    for (auto& row : rows_) row = static_cast<const std::byte*>(row) + length;
  }
  end_stream();
}

std::vector<int> DirectRead::awaited() const {
  std::vector<int> behind;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const auto& share = communicator_.control_block(rank).shares[number_ % kSlots];
    if (rank != communicator_.rank() && share.done.load(std::memory_order_acquire) == 0)
      behind.push_back(rank);
  }
  return behind;
}

}  // namespace lockstep::shm
