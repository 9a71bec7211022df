// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "collectives.h"

namespace lockstep::bench {

/// One way of doing the same thing, to be timed in turns with the others.
struct Contender {
  std::string backend = {};
  std::string memory = {};
  Trial trial;
  std::vector<double> spans = {};  ///< seconds on this rank, call by call
  std::int64_t wrong = 0;          ///< elements on this rank
};

/// What brings the ranks together before and after each call.
struct Sync {
  ProcessGroup group;
  bool by_clock = false;  ///< see begin_together()
};

struct Plan {
  int warmup = 3;
  int iterations = 0;
  bool check = true;
};

/// Warms all up, times them in turns, and checks them before and after. All ranks call it with the same
/// contenders.
void time_in_turns(std::vector<Contender>& contenders, const Sync& sync, const Plan& plan);

/// The same on every rank: for each call the span of the slowest rank; all ranks' wrong elements.
std::vector<double> slowest_spans(const Contender& contender, const ProcessGroup& group);
std::int64_t all_wrong(const Contender& contender, const ProcessGroup& group);

}  // namespace lockstep::bench
