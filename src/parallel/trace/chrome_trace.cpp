// SPDX-License-Identifier: BSD-3-Clause
#include "trace/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <system_error>

#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/host.h"
#include "base/throw_error.h"

namespace lockstep::tracing {
namespace {

using std::chrono::nanoseconds;

double microseconds(nanoseconds time) { return std::chrono::duration<double, std::micro>(time).count(); }

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= ' ') result += c;
  }
  return result;
}

// The time of the first slice of any rank, on this host's clock. Hosts' clocks differ, but a barrier ends at
// the same moment for all; a host's clock then shows the time at which the first of its ranks continues.
nanoseconds common_zero(nanoseconds first, nanoseconds (*now)(), const ProcessGroup& group,
                        std::source_location where) {
  group.barrier(where);
  const auto own_host = host_identity();
  const auto texts =
      group.all_gather_object(fmt::format("{} {} {}", now().count(), first.count(), own_host), where);
  struct Host {
    std::int64_t barrier = std::numeric_limits<std::int64_t>::max();
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
  };
  std::map<std::string, Host> hosts;
  for (const auto& text : texts) {
    std::int64_t barrier = 0;
    std::int64_t first_there = 0;
    std::string name;
    std::istringstream(text) >> barrier >> first_there >> name;
    auto& host = hosts[name];
    host.barrier = std::min(host.barrier, barrier);
    host.first = std::min(host.first, first_there);
  }
  std::int64_t oldest = 0;
  for (const auto& [name, host] : hosts) oldest = std::max(oldest, host.barrier - host.first);
  return nanoseconds(hosts[own_host].barrier - oldest);
}

std::string to_json(const RankTrace& trace, int rank, nanoseconds zero) {
  std::vector<std::string> lines{fmt::format(
      R"({{"ph": "M", "pid": {0}, "name": "process_name", "args": {{"name": "rank {0}"}}}})", rank)};
  for (std::size_t track = 0; track < trace.tracks.size(); ++track) {
    lines.push_back(
        fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_name", "args": {{"name": "{}"}}}})",
                    rank, track, escaped(trace.tracks[track])));
  }
  for (const auto& slice : trace.slices) {
    lines.push_back(
        fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "name": "{}", "ts": {:.3f}, "dur": {:.3f}}})", rank,
                    slice.track, escaped(slice.name), microseconds(slice.begin - zero),
                    microseconds(slice.end - slice.begin)));
  }
  return fmt::format("{}", fmt::join(lines, ",\n"));
}

// Returns what went wrong.
std::string write_file(const std::string& path, const std::vector<std::string>& parts) {
  const auto text =
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{}\n]}}\n", fmt::join(parts, ",\n"));
  try {
    AtomicFile file(path, {.sync = false});
    file.write(std::as_bytes(std::span(text)));
    file.commit();
    return "";
  } catch (const std::system_error& error) {
    return fmt::format("trace: cannot write {} ({}); check that the folder exists and has space", path,
                       errno_text(error.code().value()));
  }
}

}  // namespace

void write_chrome_trace(const std::string& path, const RankTrace& trace, nanoseconds (*now)(),
                        const std::optional<ProcessGroup>& group, std::source_location where) {
  auto zero = now();
  for (const auto& slice : trace.slices) zero = std::min(zero, slice.begin);
  if (group) zero = common_zero(zero, now, *group, where);
  const auto own = to_json(trace, group ? group->rank() : 0, zero);
  const auto parts = group ? group->gather_object(own, 0, where) : std::vector{own};
  std::string failure;
  if (!group || group->rank() == 0) failure = write_file(path, parts);
  if (group) failure = group->broadcast_object(failure, 0, where);
  if (!failure.empty()) throw Error(failure);
}

}  // namespace lockstep::tracing
