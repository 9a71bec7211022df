// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// A format that other processes, or later versions of Lockstep, read. `number` grows with every change that a
// reader of the number before would misread. Readers accept all numbers up to their own; processes that
// exchange messages need the same number.
struct Format {
  std::string_view name;
  std::uint64_t number;
};

namespace formats {

inline constexpr Format kCheckpoints{"checkpoint", 1};
inline constexpr Format kLauncherMessages{"message between launchers", 9};
inline constexpr Format kNodeOrders{"order of lockstep run --hosts", 2};
// What the ranks of one host publish to each other: observe::RankStatus with the entries of the flight recorder,
// and behind it the layout of the shm backend.
inline constexpr Format kFlightRecorder{"flight recorder", 3};
inline constexpr Format kSharedMemory{"shared memory", 1};
// What a rank publishes for the tools alone: RankProgress.
inline constexpr Format kRankProgress{"rank progress", 1};

// What `lockstep recorder dump` writes for `lockstep recorder analyze`.
inline constexpr Format kRecorderFiles{"recorder file", 2};

}  // namespace formats

// The name under which files have the number of their format. Files without it have the number 1.
inline constexpr std::string_view kFormatField = "lockstep_format";

// Why this version of Lockstep cannot read what has the number `found`; empty if it can.
std::string reason_not_to_read(const Format& format, std::uint64_t found);

}  // namespace lockstep
