// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/direct_read.h"
#include "backends/shm/plan.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// The first phase of a collective call on one rank: it publishes its descriptor, with small data beside it,
// and waits for the descriptors of all other ranks. Also runs a whole call whose data is all beside the
// descriptors. Use it under the engine's lock. An object can be reused for later calls, which then allocate
// no memory.
class Arrival {
 public:
  enum class Seen : std::uint8_t { not_all, all, other_call };

  explicit Arrival(const Communicator& communicator) : communicator_(communicator) {}

  // Publishes the descriptor of call `number`; wakes no rank yet. `request` must not change until the call
  // ends.
  void post(const Request& request, std::uint64_t number);
  // Instead of post(), if another Arrival has published the same descriptor.
  void resume(const Request& request, std::uint64_t number);

  // Checks which other ranks have published, and whether they make the same call.
  Seen poll();
  // The rank with a different call, if poll() returned other_call.
  int who_differs() const { return arrived_; }

  // Call it after all ranks have arrived.
  bool is_small() const;
  // Whether every rank's data can be read where it lies. The first call for which that matters tries to read
  // the memory of the other processes.
  bool is_in_place() const;
  void finish_small();
  // What rank `from` has for this one, in a call in place.
  Row row_of(int from) const;

  // Speeds up publishing the next call if it is similar.
  void prefetch_next() const;

  const Descriptor& descriptor_of(int rank) const {
    return communicator_.control_block(rank).descriptors[slot()];
  }
  const Plan& plan() const { return plan_; }

 private:
  std::size_t slot() const { return number_ % kSlots; }
  const std::byte* small_of(int rank) const { return communicator_.control_block(rank).small[slot()]; }

  bool overwrites_its_data() const;
  std::uint64_t offer() const;
  std::uint64_t offer_portions() const;
  std::uint64_t place_of(const Source& portion, std::size_t longest) const;
  bool all_read_processes() const;
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
