// SPDX-License-Identifier: BSD-3-Clause
#include "training/profiled_events.h"

#include <algorithm>
#include <map>
#include <span>
#include <sstream>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "base/host.h"
#include "comm/profiler_event.h"

namespace lockstep::training {
namespace {

using Kind = ProfiledEvent::Kind;

std::string thread_name(std::int64_t thread) {
  return fmt::format("thread {} ({})", thread, first_line(fmt::format("/proc/self/task/{}/comm", thread)));
}

std::string stream_name(const ProfiledEvent& event) {
  return fmt::format("device {} stream {}", event.device, event.resource);
}

// Gives each asynchronous event the first track that is free.
class CommunicationTracks {
 public:
  explicit CommunicationTracks(std::vector<std::string>& names) : names_(&names) {}

  std::size_t place(const ProfiledEvent& event) {
    auto track = std::ranges::find_if(tracks_, [&](const Track& one) { return one.end <= event.begin; });
    if (track == tracks_.end()) {
      track = tracks_.insert(track, Track{.index = names_->size()});
      names_->push_back(tracks_.size() == 1 ? "communication"
                                            : fmt::format("communication {}", tracks_.size()));
    }
    track->end = event.end;
    return track->index;
  }

 private:
  struct Track {
    std::size_t index = 0;
    std::chrono::nanoseconds end{};
  };
  std::vector<std::string>* names_;
  std::vector<Track> tracks_;
};

}  // namespace

std::vector<ProfiledEvent> events_of(const torch::autograd::profiler::ProfilerResult& result) {
  std::vector<ProfiledEvent> events;
  for (const auto& event : result.events()) {
    if (event.isHiddenEvent()) continue;
    const bool on_device = event.deviceType() != c10::DeviceType::CPU;
    auto name = event.name();
    std::ranges::replace_if(
        name, [](unsigned char c) { return c < ' '; }, ' ');
    events.push_back({.name = std::move(name),
                      .kind = on_device         ? Kind::device
                              : event.isAsync() ? Kind::asynchronous
                                                : Kind::nested,
                      .device = event.deviceIndex(),
                      .resource = event.deviceResourceId(),
                      .begin = std::chrono::nanoseconds(event.startNs()),
                      .end = std::chrono::nanoseconds(event.endNs()),
                      .id = event.correlationId(),
                      .started_by = on_device ? event.linkedCorrelationId() : 0});
  }
  std::ranges::stable_sort(events, {}, &ProfiledEvent::begin);
  return with_calls(std::move(events));
}

std::vector<ProfiledEvent> with_calls(std::vector<ProfiledEvent> events) {
  const auto is_mark = [](const ProfiledEvent& event) {
    return event.kind == Kind::nested && event.name.starts_with(comm::kCallMark);
  };
  std::map<std::int64_t, std::vector<ProfiledEvent*>> open;  // marks by thread
  for (auto& event : events) {
    auto& marks = open[event.resource];
    while (!marks.empty() && marks.back()->end < event.begin) marks.pop_back();
    if (is_mark(event)) {
      event.call = event.name.substr(comm::kCallMark.size());
      marks.push_back(&event);
    } else if (event.kind == Kind::asynchronous && !marks.empty()) {
      event.call = std::exchange(marks.back()->call, {});
    }
  }
  std::erase_if(events, [&](const ProfiledEvent& event) { return is_mark(event) && event.call.empty(); });
  for (auto& event : events) {
    if (is_mark(event)) event.name = "lockstep::" + event.call.substr(0, event.call.find(' '));
  }
  return events;
}

tracing::RankTrace rank_trace(const std::vector<ProfiledEvent>& events) {
  tracing::RankTrace trace;
  std::map<std::tuple<Kind, std::int64_t, std::int64_t>, std::size_t> tracks;
  CommunicationTracks communication(trace.tracks);
  for (const auto& event : events) {
    std::size_t track = 0;
    if (event.kind == Kind::asynchronous) {
      track = communication.place(event);
    } else {
      const auto [known, is_new] =
          tracks.try_emplace({event.kind, event.device, event.resource}, trace.tracks.size());
      if (is_new) {
        trace.tracks.push_back(event.kind == Kind::device ? stream_name(event) : thread_name(event.resource));
      }
      track = known->second;
    }
    trace.slices.push_back({track, event.name, event.begin, event.end, event.call});
  }
  return trace;
}

namespace {

using Kind = ProfiledEvent::Kind;
constexpr std::size_t kNameWidth = 56;
using Operators = std::unordered_map<std::string, OperatorTimes>;

double microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string key_of(const std::string& name) {
  return name.starts_with("ProfilerStep#") ? "ProfilerStep*" : name;
}

// Subtracts from each event's time that of the events directly within it.
void subtract_children(const std::vector<ProfiledEvent>& events, Operators& operators) {
  std::vector<const ProfiledEvent*> open;
  for (const auto& event : events) {
    if (event.kind != Kind::nested) continue;
    while (!open.empty() && (open.back()->resource != event.resource || open.back()->end <= event.begin))
      open.pop_back();
    if (!open.empty())
      operators[key_of(open.back()->name)].self_cpu_time_total -= microseconds(event.end - event.begin);
    open.push_back(&event);
  }
}

void add_device_times(const std::vector<ProfiledEvent>& events, Operators& operators) {
  std::unordered_map<std::uint64_t, const ProfiledEvent*> by_id;
  for (const auto& event : events) {
    if (event.kind != Kind::device) by_id.emplace(event.id, &event);
  }
  for (const auto& event : events) {
    if (event.kind != Kind::device) continue;
    const auto starter = by_id.find(event.started_by);
    if (starter == by_id.end()) continue;
    operators[key_of(starter->second->name)].self_device_time_total += microseconds(event.end - event.begin);
  }
}

std::vector<OperatorTimes> values_of(const Operators& operators) {
  std::vector<OperatorTimes> values;
  for (const auto& [key, times] : operators) {
    values.push_back(times);
    values.back().key = key;
  }
  return values;
}

std::string readable(double microseconds) {
  if (microseconds >= 1e6) return fmt::format("{:.3f}s", microseconds / 1e6);
  if (microseconds >= 1e3) return fmt::format("{:.3f}ms", microseconds / 1e3);
  return fmt::format("{:.3f}us", microseconds);
}

std::string shortened(const std::string& name) {
  return name.size() <= kNameWidth ? name : fmt::format("{:.{}}...", name, kNameWidth - 3);
}

}  // namespace

std::vector<OperatorTimes> operator_times(std::vector<ProfiledEvent> events) {
  Operators operators;
  std::ranges::sort(events, {}, [](const ProfiledEvent& event) {
    return std::tuple(event.resource, event.begin, -event.end);
  });
  for (const auto& event : events) {
    if (event.kind == Kind::device) continue;
    auto& times = operators[key_of(event.name)];
    const auto time = microseconds(event.end - event.begin);
    ++times.count;
    times.cpu_time_total += time;
    if (event.kind == Kind::nested) times.self_cpu_time_total += time;
  }
  subtract_children(events, operators);
  add_device_times(events, operators);
  return values_of(operators);
}

std::string to_text(const std::vector<OperatorTimes>& operators) {
  std::string text;
  for (const auto& times : operators) {
    text += fmt::format("{} {} {} {} {}\n", times.count, times.self_cpu_time_total, times.cpu_time_total,
                        times.self_device_time_total, times.key);
  }
  return text;
}

std::vector<OperatorTimes> summed(const std::vector<std::string>& texts) {
  Operators operators;
  for (const auto& text : texts) {
    std::istringstream lines(text);
    OperatorTimes times;
    while (lines >> times.count >> times.self_cpu_time_total >> times.cpu_time_total >>
           times.self_device_time_total) {
      std::getline(lines.ignore(1), times.key);
      auto& sum = operators[times.key];
      sum.count += times.count;
      sum.self_cpu_time_total += times.self_cpu_time_total;
      sum.cpu_time_total += times.cpu_time_total;
      sum.self_device_time_total += times.self_device_time_total;
    }
  }
  auto sorted = values_of(operators);
  std::ranges::sort(sorted, {}, [](const OperatorTimes& times) {
    return std::tuple(-times.self_cpu_time_total, -times.cpu_time_total, times.key);
  });
  return sorted;
}

std::string table_of(const std::vector<OperatorTimes>& operators, std::size_t row_limit) {
  double total = 0;
  double device_total = 0;
  for (const auto& times : operators) {
    total += times.self_cpu_time_total;
    device_total += times.self_device_time_total;
  }
  const bool has_device = device_total > 0;
  const auto device = [&](const std::string& text) { return has_device ? fmt::format("{:>14}", text) : ""; };
  auto table = fmt::format("{:<{}}{:>12}{:>12}{:>12}{:>12}{}\n", "Name", kNameWidth, "Self CPU %", "Self CPU",
                           "CPU total", "# of Calls", device("Self device"));
  for (const auto& times : std::span(operators).first(std::min(row_limit, operators.size()))) {
    table += fmt::format("{:<{}}{:>11.2f}%{:>12}{:>12}{:>12}{}\n", shortened(times.key), kNameWidth,
                         total > 0 ? 100 * times.self_cpu_time_total / total : 0,
                         readable(times.self_cpu_time_total), readable(times.cpu_time_total), times.count,
                         device(readable(times.self_device_time_total)));
  }
  table += fmt::format("Self CPU time total: {}\n", readable(total));
  if (has_device) table += fmt::format("Self device time total: {}\n", readable(device_total));
  return table;
}

}  // namespace lockstep::training
