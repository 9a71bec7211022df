// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"

namespace lockstep {

// Note [Time limits]
//
// The waits of ranks for each other are all that of the group: one number, InitOptions::timeout. Limits of the launcher
// stand beside it: the launcher tells them to its ranks, which compare them with the group's in init(), before they wait
// for each other. docs/errors.md has the table of all; a test compares it with the rows that are printed.

// A row of that table.
struct TimeLimit {
  std::string wait;
  std::string limit;   // as in "30 min"
  std::string set_by;  // "-": nothing
};

// For the files of the flight recorder, which a call that fails writes.
inline constexpr std::chrono::seconds kRecorderFilesLimit{10};
// For the others to leave, at the end of a context on rank 0, which serves the store.
inline constexpr std::chrono::seconds kLeaveLimit{2};

// "20 ms", "90 s", "30 min".
std::string span_text(std::chrono::milliseconds span);

// The rows as a table with aligned columns, each line indented.
std::string table_text(const std::vector<TimeLimit>& limits);

// Those of a rank whose default group has this timeout.
std::vector<TimeLimit> rank_limits(std::chrono::milliseconds group_timeout);

// What `lockstep run` tells its ranks of its own limits.
struct LauncherLimits {
  static constexpr const char* kVariable = "LOCKSTEP_LAUNCHER_LIMITS";

  std::optional<std::chrono::milliseconds>
      progress_timeout{};                                    // a rank without progress for so long is killed
  std::optional<std::chrono::milliseconds> silence_limit{};  // a host that is silent for so long is lost
  bool are_shown = false;                                    // rank 0 shows its own, too

  // Reads the variable; without it there are no limits. Throws Error for a value that text() has not made.
  static LauncherLimits from(const Env& env);
  // For the variable; empty without any limit.
  std::string text() const;
  // Throws ArgumentError that names both if a limit contradicts the group's timeout.
  void check(std::chrono::milliseconds group_timeout) const;
  // What a user should know of the two; empty: nothing.
  std::string warning(std::chrono::milliseconds group_timeout) const;
};

}  // namespace lockstep
