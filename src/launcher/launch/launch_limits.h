// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/time_limits.h"
#include "launch/options.h"

namespace lockstep::launch {

// A rank that lost a peer may end before that peer does.
inline constexpr std::chrono::milliseconds kConfirmLimit{300};
// From SIGTERM to SIGKILL, for processes that ranks have left behind, when nothing needs them any more.
inline constexpr std::chrono::milliseconds kLeftoverLimit{1'000};
inline constexpr std::chrono::seconds kExecLimit{60};
// For the store of a run on several hosts: its launcher serves it between the longest steps of a replacement, which are the
// kill of leftovers and the start of a program.
inline constexpr std::chrono::milliseconds kStoreAnswerLimit =
    kLeftoverLimit + kExecLimit + std::chrono::seconds(29);
// A frozen coordinator keeps its connections, so a node that waits for it gives up after so many silence
// limits. A limit starts only after the launcher has seen the one before expire, so a launcher that was
// frozen itself counts one.
inline constexpr int kSilences = 4;

// The limits of a launcher with these options, for the table that `lockstep run -v` prints.
std::vector<TimeLimit> launch_limits(const LaunchOptions& options);

// For the ranks.
LauncherLimits limits_for_ranks(const LaunchOptions& options);

// That whoever started this launcher may end it before its grace period has; empty: no such thing is known.
std::string grace_warning(const LaunchOptions& options, const Env& env);

}  // namespace lockstep::launch
