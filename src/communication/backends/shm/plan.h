// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "backends/shm/kernels.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// How one rank takes part in a call: the data that it publishes, in one portion that all ranks read or in one
// portion per reader, and what it does with the data of the others.
struct Plan {
  std::size_t portions = 1;
  std::vector<Source> stage = {};  // [portion]; empty: nothing
  std::vector<Target> take = {};   // [rank] the target of that rank's data for this one; empty: none
  ReduceKernel kernel = nullptr;  // reduces the portions for this rank, over all ranks; nullptr: no reduction
  std::size_t width = 1;          // bytes of an element
  Source own = {};                // this rank's data for itself
  Target result = {};             // the target of its result; none if it has none
  bool share_result = false;      // whether others take the result, from this rank's own portion
};

// For calls whose data is beside the descriptors: each rank that needs a reduction does all of it. Overwrites
// `plan` and reuses its memory.
void plan_small(const Request& request, int rank, int size, Plan& plan);

// For calls that go through staging buffers: each rank does its share of a reduction.
Plan chunked_plan(const Request& request, int rank, int size);

// In calls with uneven sizes two tables precede a rank's small data: the bytes that it has for each rank,
// and the bytes that it expects from each. Returns the bytes of both.
std::size_t table_bytes(Kind kind, int size);

bool overlap(const Target& a, const Source& b);

// Copies a rank's data for itself.
void take_own(const Plan& plan, int rank);

// Bytes of all portions, and of the longest.
std::uint64_t staged_bytes(const Plan& plan);
std::uint64_t longest_portion(const Plan& plan);

// Splits `bytes` into `shares` of about equal length that start at cache lines. Returns the start of share
// `index`, or the end for index == shares.
std::size_t share_start(std::size_t bytes, int shares, int index);

}  // namespace lockstep::shm
