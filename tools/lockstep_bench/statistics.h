// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include "report.h"

namespace lockstep::bench {

// Timed calls for a row of `bytes`: fewer of the long ones.
int iterations_for(std::size_t bytes);

// The value below which `share` of the values lie; linear between neighbours.
double quantile(std::vector<double> values, double share);

// The longest of the ranks' spans, call by call; [rank][call], as many calls on each rank.
std::vector<double> slowest(const std::vector<std::vector<double>>& spans);

// `row`, whose bytes are set, with the times and bandwidths that follow from `seconds`, one a call.
Row with_times(Row row, const std::vector<double>& seconds, double bus_factor);

}  // namespace lockstep::bench
