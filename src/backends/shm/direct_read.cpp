// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/direct_read.h"

#include <cstring>
#include <utility>

namespace lockstep::shm {

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
  const int size = communicator_.size();
  if (plan_.kernel != nullptr) {
    void* const out = plan_.result.data;
    plan_.kernel(&out, 1, rows_.data(), size, plan_.result.bytes / plan_.width);
    return;
  }
  take_own(plan_, communicator_.rank());
  // Each rank starts at its neighbour, so that not all read one rank's memory at the same time.
  for (int step = 1; step < size; ++step) {
    const auto from = static_cast<std::size_t>((communicator_.rank() + step) % size);
    std::memcpy(plan_.take[from].data, rows_[from], plan_.take[from].bytes);
  }
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
