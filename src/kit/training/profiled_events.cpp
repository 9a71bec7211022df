// SPDX-License-Identifier: BSD-3-Clause
#include "training/profiled_events.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "base/host.h"

namespace lockstep::training {
namespace {

using Kind = ProfiledEvent::Kind;

std::string thread_name(std::int64_t thread) {
  return fmt::format("thread {} ({})", thread, first_line(fmt::format("/proc/self/task/{}/comm", thread)));
}

std::string stream_name(const ProfiledEvent& event) {
  return fmt::format("device {} stream {}", event.device, event.resource);
}

// Gives each asynchronous event the first lane that is free.
class CommunicationLanes {
 public:
  explicit CommunicationLanes(std::vector<std::string>& names) : names_(&names) {}

  std::size_t place(const ProfiledEvent& event) {
    auto lane = std::ranges::find_if(lanes_, [&](const Lane& one) { return one.end <= event.begin; });
    if (lane == lanes_.end()) {
      lane = lanes_.insert(lane, Lane{.index = names_->size()});
      names_->push_back(lanes_.size() == 1 ? "communication"
                                           : fmt::format("communication {}", lanes_.size()));
    }
    lane->end = event.end;
    return lane->index;
  }

 private:
  struct Lane {
    std::size_t index = 0;
    std::chrono::nanoseconds end{};
  };
  std::vector<std::string>* names_;
  std::vector<Lane> lanes_;
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
  return events;
}

tracing::RankTrace rank_trace(const std::vector<ProfiledEvent>& events) {
  tracing::RankTrace trace;
  std::map<std::tuple<Kind, std::int64_t, std::int64_t>, std::size_t> lanes;
  CommunicationLanes communication(trace.lanes);
  for (const auto& event : events) {
    std::size_t lane = 0;
    if (event.kind == Kind::asynchronous) {
      lane = communication.place(event);
    } else {
      const auto [known, is_new] =
          lanes.try_emplace({event.kind, event.device, event.resource}, trace.lanes.size());
      if (is_new) {
        trace.lanes.push_back(event.kind == Kind::device ? stream_name(event) : thread_name(event.resource));
      }
      lane = known->second;
    }
    trace.slices.push_back({lane, event.name, event.begin, event.end});
  }
  return trace;
}

}  // namespace lockstep::training
