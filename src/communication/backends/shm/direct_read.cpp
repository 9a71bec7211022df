// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/direct_read.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "backends/shm/stream.h"

namespace lockstep::shm {
namespace {

// A reduced part of this size is written past the caches, which its inputs need.
constexpr std::size_t kStreamedBytes = std::size_t{2} << 20U;
constexpr std::size_t kBlockBytes = std::size_t{16} << 10U;  // stays in the nearest cache

using Block = std::array<std::byte, kBlockBytes>;

}  // namespace

DirectRead::DirectRead(const Communicator& communicator, std::uint64_t number, std::vector<Row> rows,
                       std::vector<int> readers, const Plan& plan)
    : communicator_(communicator),
      number_(number),
      rows_(std::move(rows)),
      readers_(std::move(readers)),
      plan_(plan) {}

bool DirectRead::advance() {
  if (!has_read_) {
    has_read_ = read();
    if (!has_read_) return false;
    communicator_.own().read.value.store(number_, std::memory_order_release);
    communicator_.ring();
  }
  return awaited().empty();
}

// False if the data cannot be trusted, because a rank may have given up the call.
bool DirectRead::read() {
  if (can_trust()) plan_.kernel != nullptr ? reduce() : take();
  std::atomic_thread_fence(std::memory_order_acquire);
  return can_trust();
}

bool DirectRead::can_trust() const {
  return !communicator_.is_failing() && communicator_.left_before(givers(), number_).empty();
}

// The ranks that have data for this one. It starts at its neighbour, so that not all read one rank's memory
// at the same time.
std::vector<int> DirectRead::givers() const {
  std::vector<int> ranks;
  const int size = communicator_.size();
  for (int step = 1; step < size; ++step) {
    const int rank = (communicator_.rank() + step) % size;
    const auto index = static_cast<std::size_t>(rank);
    if (plan_.kernel != nullptr || (index < plan_.take.size() && plan_.take[index].bytes > 0))
      ranks.push_back(rank);
  }
  return ranks;
}

void DirectRead::take() {
  take_own(plan_, communicator_.rank());
  for (const int rank : givers()) {
    const auto& row = rows_[static_cast<std::size_t>(rank)];
    const auto& to = plan_.take[static_cast<std::size_t>(rank)];
    if (row.mapped != nullptr) {
      copy_part(to.data, row.mapped, to.bytes, to.bytes);
    } else if (!read_memory(communicator_, rank, row.address, to)) {
      return fail_for(rank, errno == ESRCH);
    }
  }
}

void DirectRead::fail_for(int rank, bool is_gone) {
  using Cause = GroupFailure::Cause;
  if (!communicator_.left_before({rank}, number_).empty()) return;
  const bool is_dead = is_gone || communicator_.find_dead() == rank;
  communicator_.fail(is_dead ? Cause::peer_lost : Cause::memory_refused, rank, number_);
}

void DirectRead::reduce() {
  const auto [to, bytes] = plan_.result;
  std::vector<const void*> rows;
  for (const auto& row : rows_) rows.push_back(row.mapped);
  if (bytes < kStreamedBytes || to == plan_.own.data || !can_stream(to)) {
    void* const out = to;
    plan_.kernel(&out, 1, rows.data(), communicator_.size(), bytes / plan_.width);
    return;
  }
  alignas(kLine) Block block;
  void* const out = block.data();
  for (std::size_t start = 0; start < bytes; start += kBlockBytes) {
    const auto length = std::min(kBlockBytes, bytes - start);
    plan_.kernel(&out, 1, rows.data(), communicator_.size(), length / plan_.width);
    stream(to + start, block.data(), length);
    for (auto& row : rows) row = static_cast<const std::byte*>(row) + length;
  }
  end_stream();
}

std::vector<int> DirectRead::awaited() const {
  if (!has_read_) return communicator_.left_before(givers(), number_);
  std::vector<int> behind;
  for (const int rank : readers_) {
    if (communicator_.control_block(rank).read.value.load(std::memory_order_acquire) < number_)
      behind.push_back(rank);
  }
  return behind;
}

}  // namespace lockstep::shm
