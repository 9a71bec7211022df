// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep::metrics {

// The sums of `numbers` over the ranks, by one all-reduce. Every rank passes the same number of them.
std::vector<double> sum_over_ranks(const std::vector<double>& numbers,
                                   const std::optional<ProcessGroup>& group);

}  // namespace lockstep::metrics
