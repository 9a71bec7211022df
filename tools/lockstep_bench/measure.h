// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "collectives.h"
#include "options.h"

namespace lockstep::bench {

/// One line of the table.
struct Row {
  std::string collective = {};
  std::size_t bytes = 0;
  std::int64_t count = 0;
  std::string dtype = {};
  std::string op = {};
  std::string backend = {};
  std::string memory = {};
  double microseconds = 0;  ///< median
  double p10 = 0;
  double p90 = 0;
  double algbw = 0;  ///< GB/s
  double busbw = 0;
  std::int64_t wrong = -1;  ///< elements; -1: not checked
};

/// One way of doing the same thing, to be timed in turns with the others.
struct Contender {
  std::string backend = {};
  std::string memory = {};
  Trial trial;
  std::vector<double> spans = {};  ///< seconds on this rank, call by call
  std::int64_t wrong = -1;
};

/// Warms all up, checks them, and times them in turns. All ranks call it with the same contenders; `sync`
/// starts each call on all ranks together.
void time_in_turns(std::vector<Contender>& contenders, const ProcessGroup& sync, int iterations, bool check);

/// The spans of the slowest rank, call by call, and what follows from them; the same on every rank.
Row summarize(const Contender& contender, const ProcessGroup& sync, Row row, double bus_factor);

int iterations_for(std::size_t bytes);
/// The value below which `share` of the values lie; linear between neighbours.
double quantile(std::vector<double> values, double share);

}  // namespace lockstep::bench
