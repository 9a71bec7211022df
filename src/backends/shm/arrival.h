// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/plan.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// What all collective calls begin with, as one rank goes through it: it posts what it is about to do, with
// small data right beside it, and sees everybody else post. And the whole of a call whose data all lies
// beside the posts. Under the engine's lock. Can be used for one call after the other, which then asks for no
// memory.
class Arrival {
 public:
  enum class Seen : std::uint8_t { not_all, all, other_call };

  explicit Arrival(const Communicator& communicator) : communicator_(communicator) {}

  // Publishes the post of call `number`; nobody is woken yet. `request` stays as it is until the call ends.
  void post(const Request& request, std::uint64_t number);
  // In place of post(), where another Arrival has posted the same.
  void resume(const Request& request, std::uint64_t number);

  // Which other ranks have posted, and whether they make the same call.
  Seen look();
  // Who does not, where look() found other_call.
  int who_differs() const { return arrived_; }

  // After all have been seen.
  bool is_small() const;
  bool is_zero_copy() const;
  void finish_small();

  // Makes the post of the next call a little faster, if it is one like this.
  void prefetch_next() const;

  const Descriptor& descriptor_of(int rank) const {
    return communicator_.control_block(rank).descriptors[slot()];
  }
  const Plan& plan() const { return plan_; }

 private:
  std::size_t slot() const { return number_ % kSlots; }
  const std::byte* small_of(int rank) const { return communicator_.control_block(rank).small[slot()]; }

  std::int64_t offer_zero_copy(std::uint64_t bytes) const;
  void write_small(std::uint64_t payload) const;
  std::byte* write_tables(std::byte* to) const;
  std::uint64_t bytes_for(std::size_t rank) const;
  bool agrees(int rank) const;
  bool tables_agree() const;
  std::size_t small_offset(int rank) const;
  void reduce();
  void copy() const;

  const Communicator& communicator_;
  const Request* request_ = nullptr;
  Plan plan_;
  std::uint64_t number_ = 0;
  int arrived_ = 0;  // ranks 0 .. arrived_-1 have been seen
  std::vector<const void*> rows_;
};

}  // namespace lockstep::shm
