// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "observe/find_runs.h"

namespace lockstep::observe {

// For the frames of Python of all processes together.
inline constexpr std::chrono::seconds kPythonLimit{20};

// The stacks of all threads of a run's ranks, equal ones once, with the call that each rank is in; frames of Python come
// first. `only`: of the process with this Rank::pid. No frames of Python are read after `python`. Throws as stacks_of().
std::string stacks_text(const ObservedRun& run, std::optional<std::int64_t> only = std::nullopt,
                        const Deadline& python = Deadline(kPythonLimit));

// Those of one process for a report: the first 32 KiB of many threads with deep stacks. Throws as stacks_of().
std::string short_stacks_text(const ObservedRun& run, std::int64_t pid,
                              const Deadline& python = Deadline(kPythonLimit));

}  // namespace lockstep::observe
