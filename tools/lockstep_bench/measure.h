// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "collectives.h"

namespace lockstep::bench {

// A backend and a kind of memory, timed interleaved with the others.
struct BenchCase {
  std::string backend = {};
  std::string memory = {};
  Trial trial;
  std::vector<double> spans = {};  // seconds on this rank, per call
  std::int64_t wrong = 0;          // elements on this rank
};

// Synchronizes the ranks before and after each call.
struct Sync {
  ProcessGroup group;
  bool by_clock = false;  // see start_together()
};

struct Plan {
  int warmup = 3;
  int iterations = 0;
  bool check = true;
};

// Warms up and times all cases, interleaved, and checks them before and after. All ranks call it with the
// same cases.
void time_interleaved(std::vector<BenchCase>& cases, const Sync& sync, const Plan& plan);

// The time of the slowest rank per call, and the wrong elements of all ranks. The results are the same on
// every rank.
std::vector<double> slowest_spans(const BenchCase& each, const ProcessGroup& group);
std::int64_t total_wrong(const BenchCase& each, const ProcessGroup& group);

}  // namespace lockstep::bench
