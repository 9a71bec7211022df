// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/training/profile.h>

#include "trace/chrome_trace.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace lockstep::training {

// One event of LibTorch's profiler, with times since the Unix epoch.
struct ProfiledEvent {
  enum class Kind { nested, asynchronous, device };

  std::string name;
  Kind kind = Kind::nested;  // nested: within the events of its thread that began earlier
  std::int64_t device = 0;
  std::int64_t resource = 0;  // the thread's number or, of a device, the stream's
  std::chrono::nanoseconds begin{};
  std::chrono::nanoseconds end{};
  std::uint64_t id = 0;
  std::uint64_t started_by = 0;  // of a device's event, the id of the operator
  std::string call = {};         // of a collective call, the same text on all ranks that make it
};

// Oldest first. With marks of calls (comm/profiler_event.h) replaced.
std::vector<ProfiledEvent> events_of(const torch::autograd::profiler::ProfilerResult& result);

// Replaces the marks in events that are sorted by their begin. The first asynchronous event within a mark has its text;
// if there is none, because Gloo's begin in another thread, the mark itself becomes an event "lockstep::all_reduce".
std::vector<ProfiledEvent> with_calls(std::vector<ProfiledEvent> events);

// A track for each thread and each stream, and as many for asynchronous events that none overlap in one.
tracing::RankTrace rank_trace(const std::vector<ProfiledEvent>& events);

// One for each name, in any order.
std::vector<OperatorTimes> operator_times(std::vector<ProfiledEvent> events);

// The sums over several ranks' texts, sorted.
std::string to_text(const std::vector<OperatorTimes>& operators);
std::vector<OperatorTimes> summed(const std::vector<std::string>& texts);

std::string table_of(const std::vector<OperatorTimes>& operators, std::size_t row_limit);

}  // namespace lockstep::training
