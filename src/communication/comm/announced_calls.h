// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <lockstep/comm/process_group.h>

namespace lockstep::comm {

// Note [Announced calls]
//
// In a Join, ranks that have no data repeat the calls of those that have. SyncBatchNorm's calls differ from
// step to step: a layer is skipped, a checkpointed block runs twice, several forwards precede a backward. So
// in an iteration in which a rank has no data, each rank that has announces every call right before it makes
// it, and finally that the iteration has ended. A rank without data reads what is announced, makes the same
// call with zeros, and reads on.
//
// An announcement is an all-reduce of 16 bytes. The ranks that have data do not wait for it. The end is
// announced before the next call that belongs to no iteration of this kind, because only that shows that no
// backward follows.

struct Announcement {
  enum class Kind : std::uint8_t {
    end_of_iteration,
    all_gather,        // of `count` values in fp64 from each rank, into one tensor
    all_reduce,        // the sum of `count` values in fp64
    bucket,            // the reduction of bucket `count` of DistributedDataParallel begins
    end_of_reductions  // the ranks wait for the reductions, and make their further calls
  };

  Kind kind = Kind::end_of_iteration;
  std::int64_t count = 0;
};

// From now on, announce() does what it says. `device`: of the announcements.
void begin_announcing(const ProcessGroup& group, c10::Device device);
// Does nothing outside of begin_announcing() and end_announcing().
void announce(const ProcessGroup& group, const Announcement& announcement);
// Announces the end of the iteration.
void end_announcing(const ProcessGroup& group);

// On a rank without data: the next announcement. Throws DesyncError if ranks announce different calls.
Announcement await_announcement(const ProcessGroup& group, c10::Device device);
// Makes an announced all-gather or all-reduce with zeros.
void repeat_with_zeros(const Announcement& announcement, const ProcessGroup& group, c10::Device device);

}  // namespace lockstep::comm
