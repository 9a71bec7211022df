// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::pipelining {

// The first layers of `parts` consecutive parts, and the number of layers: the least possible largest sum of
// costs.
std::vector<std::size_t> stage_cuts(const std::vector<double>& costs, std::size_t parts);

}  // namespace lockstep::pipelining
