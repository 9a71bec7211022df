// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "observe/run.h"

namespace lockstep::testing {

inline constexpr std::int64_t kSecond = 1'000'000'000;
inline constexpr std::int64_t kNow = 100 * kSecond;

/// A collective of a group, made so many seconds before kNow.
inline observe::Call call(std::uint64_t sequence, double age, const std::string& name = "all_reduce") {
  return {.number = sequence,
          .sequence = sequence,
          .name = name,
          .dtype = "Float",
          .shape = {4},
          .dims = 1,
          .file = "train.cpp",
          .line = 40,
          .issued_at = kNow - static_cast<std::int64_t>(age * kSecond)};
}

/// A rank that has completed all calls of a group but the last, and waits for that one if it `waits`.
inline observe::Membership member(int rank, int size, std::vector<observe::Call> calls, bool waits,
                                  const std::string& group = "default") {
  const auto last = calls.empty() ? 0 : calls.back().number;
  return {.group = group,
          .rank = rank,
          .size = size,
          .issued = last,
          .completed = waits ? last - 1 : last,
          .awaited = waits ? last : 0,
          .calls = std::move(calls)};
}

inline observe::Run run_of(std::vector<std::vector<observe::Membership>> ranks) {
  observe::Run run{.id = "job", .host = "node3", .taken_at = kNow};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    run.ranks.push_back({.rank = static_cast<int>(i),
                         .pid = 100 + static_cast<std::int64_t>(i),
                         .thread = 100 + static_cast<std::int64_t>(i),
                         .activity = "its thread is running",
                         .groups = std::move(ranks[i])});
  }
  return run;
}

}  // namespace lockstep::testing
