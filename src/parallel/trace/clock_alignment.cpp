// SPDX-License-Identifier: BSD-3-Clause
#include "trace/clock_alignment.h"

#include <algorithm>
#include <sstream>

#include <fmt/ranges.h>

#include "base/host.h"

namespace lockstep::tracing {
namespace {

using std::chrono::nanoseconds;

constexpr int kBarriers = 16;

BarrierTimes pass_barriers(nanoseconds (*now)(), const ProcessGroup& group, std::source_location where) {
  BarrierTimes times;
  for (int i = 0; i < kBarriers; ++i) {
    times.entered.push_back(now());
    group.barrier(where);
    times.left.push_back(now());
  }
  return times;
}

std::string to_text(const BarrierTimes& times) {
  std::string text;
  for (int i = 0; i < kBarriers; ++i)
    text += fmt::format("{} {} ", times.entered[i].count(), times.left[i].count());
  return text;
}

BarrierTimes to_times(const std::string& text) {
  BarrierTimes times;
  std::istringstream stream(text);
  for (std::int64_t entered = 0, left = 0; stream >> entered >> left;) {
    times.entered.emplace_back(entered);
    times.left.emplace_back(left);
  }
  return times;
}

struct RankClock {
  std::string host, host_name;
  nanoseconds first{};
};

std::vector<RankClock> gather_clocks(nanoseconds first, const ProcessGroup& group,
                                     std::source_location where) {
  std::vector<RankClock> clocks;
  const auto own = fmt::format("{} {} {}", first.count(), host_identity(), host_name());
  for (const auto& text : group.all_gather_object(own, where)) {
    auto& clock = clocks.emplace_back();
    std::int64_t count = 0;
    std::istringstream(text) >> count >> clock.host >> clock.host_name;
    clock.first = nanoseconds(count);
  }
  return clocks;
}

// By the first rank of each.
std::vector<HostClock> hosts_of(const std::vector<RankClock>& clocks) {
  std::vector<HostClock> hosts;
  for (std::size_t rank = 0; rank < clocks.size(); ++rank) {
    auto known = std::ranges::find_if(
        hosts, [&](const HostClock& host) { return clocks[host.ranks.front()].host == clocks[rank].host; });
    if (known == hosts.end())
      known = hosts.insert(known, HostClock{.name = clocks[rank].host_name, .ranks = {}});
    known->ranks.push_back(static_cast<int>(rank));
  }
  return hosts;
}

// When the last rank of a host entered a barrier, and the first left it.
struct Passage {
  nanoseconds entered = nanoseconds::min();
  nanoseconds left = nanoseconds::max();
};

Passage passage(const std::vector<BarrierTimes>& times, const HostClock& host, std::size_t barrier) {
  Passage passage;
  for (const int rank : host.ranks) {
    passage.entered = std::max(passage.entered, times[rank].entered[barrier]);
    passage.left = std::min(passage.left, times[rank].left[barrier]);
  }
  return passage;
}

}  // namespace

// No rank leaves a barrier before the last one has entered it: each barrier bounds the offset on both sides.
void estimate_offsets(const std::vector<BarrierTimes>& times, std::vector<HostClock>& clocks) {
  for (std::size_t host = 1; host < clocks.size(); ++host) {
    auto low = nanoseconds::min();
    auto high = nanoseconds::max();
    for (std::size_t barrier = 0; barrier < times.front().entered.size(); ++barrier) {
      const auto reference = passage(times, clocks.front(), barrier);
      const auto there = passage(times, clocks[host], barrier);
      low = std::max(low, there.entered - reference.left);
      high = std::min(high, there.left - reference.entered);
    }
    clocks[host].offset = low + (high - low) / 2;
    clocks[host].error = std::chrono::abs(high - low) / 2;  // low > high if a clock was set meanwhile
  }
}

AlignedClocks AlignedClocks::alone(nanoseconds first) {
  return {.zero = first, .hosts = {{.name = host_name(), .ranks = {0}}}};
}

AlignedClocks aligned_clocks(nanoseconds first, nanoseconds (*now)(), const ProcessGroup& group,
                             std::source_location where) {
  const auto ranks = gather_clocks(first, group, where);
  AlignedClocks aligned{.zero = nanoseconds::max(), .hosts = hosts_of(ranks)};
  if (aligned.hosts.size() > 1) {
    std::vector<BarrierTimes> times;
    for (const auto& text : group.all_gather_object(to_text(pass_barriers(now, group, where)), where))
      times.push_back(to_times(text));
    estimate_offsets(times, aligned.hosts);
  }
  nanoseconds own_offset{};
  for (const auto& host : aligned.hosts) {
    for (const int rank : host.ranks) {
      aligned.zero = std::min(aligned.zero, ranks[rank].first - host.offset);
      if (rank == group.rank()) own_offset = host.offset;
    }
  }
  aligned.zero += own_offset;
  return aligned;
}

}  // namespace lockstep::tracing
