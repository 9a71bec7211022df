// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep::tracing {

// The clock of one host beside that of rank 0's host.
struct HostClock {
  std::string name;
  std::vector<int> ranks;
  std::chrono::nanoseconds offset{};  // what it shows more
  std::chrono::nanoseconds error{};   // the offset lies within this of the true one
};

// What a rank read before it entered some barriers, and after it left them.
struct BarrierTimes {
  std::vector<std::chrono::nanoseconds> entered;
  std::vector<std::chrono::nanoseconds> left;
};

// Fills in offsets and errors. `times` has one entry for each rank. The first clock is rank 0's.
void estimate_offsets(const std::vector<BarrierTimes>& times, std::vector<HostClock>& clocks);

struct AlignedClocks {
  std::chrono::nanoseconds zero{};  // the earliest `first` of all ranks, on this host's clock
  std::vector<HostClock> hosts;

  static AlignedClocks alone(std::chrono::nanoseconds first);
};

// Measures the clocks `now` of the group's hosts with barriers; the processes of a host share one, whose error
// is 0. A collective call.
AlignedClocks aligned_clocks(std::chrono::nanoseconds first, std::chrono::nanoseconds (*now)(),
                             const ProcessGroup& group, std::source_location where);

}  // namespace lockstep::tracing
