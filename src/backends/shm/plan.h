// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "backends/shm/kernels.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// How one rank takes part in a call: what it leaves for others to read, in one lane that everybody reads or
// in one lane for each reader, and what it does with what the others left.
struct Plan {
  std::size_t lanes = 1;
  std::vector<Source> stage = {};  // [lane]; empty: nothing
  std::vector<Target> take = {};   // [rank] where what that rank left for this one goes; empty: nothing
  ReduceKernel kernel = nullptr;   // reduces the lanes for this rank, over all ranks; nullptr: no reduction
  std::size_t width = 1;           // bytes of an element
  Source own = {};                 // what this rank left for itself, where it lies
  Target result = {};              // where its result goes; none: nowhere
  bool share_result = false;       // whether others take the result, from this rank's own lane
};

// For calls whose data lies beside the posts: whoever wants a reduction does all of it. What `plan` held is
// forgotten, but for its memory.
void plan_small(const Request& request, int rank, int size, Plan& plan);

// For calls that go through staging buffers: each rank does its share of a reduction.
Plan chunked_plan(const Request& request, int rank, int size);

// In calls with uneven sizes two tables precede a rank's small data: the bytes that it has for each rank,
// and the bytes that it expects from each. Returns the bytes of both.
std::size_t table_bytes(Kind kind, int size);

// Copies what a rank left for itself.
void take_own(const Plan& plan, int rank);

// Bytes of all lanes, and of the longest.
std::uint64_t staged_bytes(const Plan& plan);
std::uint64_t longest_lane(const Plan& plan);

// Cuts `bytes` into `shares` of about equal length that begin at cache lines: where share `index` begins, or
// the end for index == shares.
std::size_t share_start(std::size_t bytes, int shares, int index);

}  // namespace lockstep::shm
