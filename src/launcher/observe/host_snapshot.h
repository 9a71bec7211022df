// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "observe/run.h"

namespace lockstep::observe {

// What the ranks below this process do now, a text for each rank of at most kMostPart bytes, for readers on other
// hosts: the ranks numbered first_rank and above, or all if `count` is 0. Throws Error for ranks of another version
// of Lockstep.
std::vector<std::string> snapshot_parts(int first_rank, int count);

inline constexpr std::size_t kMostPart = std::size_t{1} << 20;

// The text of a rank: of a long one only its last calls.
std::string part_of(const Run& run, const Rank& rank, std::int64_t resident);

// What the parts of a host say.
struct HostSnapshot {
  Run run{};
  std::map<int, std::int64_t> resident{};  // [rank]: bytes of its process in memory, where they are known
};
// Throws Error for texts that part_of() has not made.
HostSnapshot snapshot_from(const std::vector<std::string>& parts);

}  // namespace lockstep::observe
