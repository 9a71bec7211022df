// SPDX-License-Identifier: BSD-3-Clause
#include "trace/chrome_trace.h"

#include <algorithm>
#include <compare>
#include <map>
#include <span>
#include <sstream>
#include <system_error>

#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/throw_error.h"
#include "trace/clock_alignment.h"

namespace lockstep::tracing {
namespace {

using std::chrono::nanoseconds;

// Perfetto takes thread 0 of a process for the thread with the number of the process, whose slices it would mix with.
std::size_t thread_of(std::size_t track) { return track + 1; }

double microseconds(nanoseconds time) { return std::chrono::duration<double, std::micro>(time).count(); }

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= ' ') result += c;
  }
  return result;
}

std::string slice_json(const RankTrace::Slice& slice, int rank, nanoseconds zero) {
  const auto call =
      slice.call.empty() ? "" : fmt::format(R"(, "args": {{"call": "{}"}})", escaped(slice.call));
  return fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "name": "{}", "ts": {:.3f}, "dur": {:.3f}{}}})",
                     rank, thread_of(slice.track), escaped(slice.name), microseconds(slice.begin - zero),
                     microseconds(slice.end - slice.begin), call);
}

std::string to_json(const RankTrace& trace, int rank, nanoseconds zero) {
  std::vector<std::string> lines{fmt::format(
      R"({{"ph": "M", "pid": {0}, "name": "process_name", "args": {{"name": "rank {0}"}}}})", rank)};
  for (std::size_t track = 0; track < trace.tracks.size(); ++track) {
    lines.push_back(
        fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_name", "args": {{"name": "{}"}}}})",
                    rank, thread_of(track), escaped(trace.tracks[track])));
  }
  for (const auto& slice : trace.slices) lines.push_back(slice_json(slice, rank, zero));
  return fmt::format("{}", fmt::join(lines, ",\n"));
}

// Where a rank's slice of a call begins: the point to which a viewer binds a flow.
struct FlowEnd {
  nanoseconds time{};
  std::size_t rank = 0;
  std::size_t track = 0;

  friend auto operator<=>(const FlowEnd&, const FlowEnd&) = default;
};

// A line for each slice of a call.
std::string flow_ends(const RankTrace& trace, nanoseconds zero) {
  std::string text;
  for (const auto& slice : trace.slices) {
    if (!slice.call.empty())
      text += fmt::format("{} {} {}\n", (slice.begin - zero).count(), slice.track, escaped(slice.call));
  }
  return text;
}

std::map<std::string, std::vector<FlowEnd>> flows_of(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<FlowEnd>> flows;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    std::int64_t time = 0;
    std::size_t track = 0;
    for (std::string call; lines >> time >> track && std::getline(lines, call);) {
      auto& ends = flows[call];
      const bool is_first = ends.empty() || ends.back().rank != rank;  // a group of the name was made anew
      if (is_first) ends.push_back({nanoseconds(time), rank, track});
    }
  }
  return flows;
}

// A viewer connects each point of a flow with the one before it in time.
void add_flows(const std::vector<std::string>& texts, std::vector<std::string>& lines) {
  std::size_t id = 0;
  for (auto& [call, ends] : flows_of(texts)) {
    if (ends.size() < 2) continue;
    std::ranges::sort(ends);
    ++id;
    for (const auto& end : ends) {
      const auto* const phase = end == ends.front() ? "s" : end == ends.back() ? "f" : "t";
      lines.push_back(fmt::format(
          R"({{"ph": "{}", "bp": "e", "cat": "call", "name": "call", "id": {}, "pid": {}, "tid": {}, "ts": {:.3f}}})",
          phase, id, end.rank, thread_of(end.track), microseconds(end.time)));
    }
  }
}

std::string clocks_json(const std::vector<HostClock>& clocks) {
  std::vector<std::string> hosts;
  for (const auto& [name, ranks, offset, error] : clocks) {
    hosts.push_back(fmt::format(R"({{"host": "{}", "ranks": [{}], "error_us": {:.3f}}})", escaped(name),
                                fmt::join(ranks, ", "), microseconds(error)));
  }
  return fmt::format(R"({{"clocks": [{}]}})", fmt::join(hosts, ", "));
}

// Returns what went wrong.
std::string write_file(const std::string& path, const std::vector<HostClock>& clocks,
                       const std::vector<std::string>& events) {
  const auto text =
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"otherData\": {}, \"traceEvents\": [\n{}\n]}}\n",
                  clocks_json(clocks), fmt::join(events, ",\n"));
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
  auto first = now();
  for (const auto& slice : trace.slices) first = std::min(first, slice.begin);
  const auto clocks = group ? aligned_clocks(first, now, *group, where) : AlignedClocks::alone(first);
  const auto rank = group ? group->rank() : 0;
  const auto gathered = [&](const std::string& own) {
    return group ? group->gather_object(own, 0, where) : std::vector{own};
  };
  auto events = gathered(to_json(trace, rank, clocks.zero));
  add_flows(gathered(flow_ends(trace, clocks.zero)), events);
  std::string failure;
  if (rank == 0) failure = write_file(path, clocks.hosts, events);
  if (group) failure = group->broadcast_object(failure, 0, where);
  if (!failure.empty()) throw Error(failure);
}

}  // namespace lockstep::tracing
