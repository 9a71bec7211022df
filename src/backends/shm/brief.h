// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "backends/shm/kernels.h"
#include "backends/shm/request.h"
#include "backends/shm/team.h"

namespace lockstep::shm {

// A barrier, or an all-reduce of data that fit beside the post, as a blocking call asks for it.
struct Brief {
  std::uint64_t what = 0;  // packed()
  Target tensor = {};
  ReduceKernel kernel = nullptr;
  std::size_t width = 1;
  std::uint64_t log_number = 0;
};

// Goes through such a call as Collective does, to the same effect in the shared memory, without keeping
// anything. Under the engine's lock.
class BriefCall {
 public:
  enum class Seen : std::uint8_t { not_all, all, other_call };

  // Publishes the post; nobody is woken yet.
  BriefCall(const Team& team, const Brief& brief, std::uint64_t number);

  // Which other ranks have posted.
  Seen look();
  // After all have: reduces, and completes the call. `rows` is for use here.
  void finish(std::vector<const void*>& rows) const;

 private:
  std::size_t slot() const { return number_ % kSlots; }

  const Team& team_;
  const Brief& brief_;
  std::uint64_t number_;
  int arrived_ = 0;  // ranks 0 .. arrived_-1 have been seen
};

}  // namespace lockstep::shm
