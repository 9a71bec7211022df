// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep::tracing {

// What one rank did. Times are those of any clock that the processes of a host share.
struct RankTrace {
  struct Slice {
    std::size_t track = 0;
    std::string name;
    std::chrono::nanoseconds begin;
    std::chrono::nanoseconds end;
    std::string call = {};  // of a collective call, the same text on all ranks that make it
  };

  std::vector<std::string> tracks;
  std::vector<Slice> slices;
};

// Writes the traces of all ranks as one Chrome trace, one process per rank, with times since the first slice.
// Flows connect the slices of one call in the order in which the ranks began it. `now` reads the traces' clock,
// and "otherData" says how far a host's clock may be off. Without a group this rank is alone. Rank 0 writes the
// file and renames it when it is complete. A collective call; all ranks throw Error if the file cannot be written.
void write_chrome_trace(const std::string& path, const RankTrace& trace, std::chrono::nanoseconds (*now)(),
                        const std::optional<ProcessGroup>& group, std::source_location where);

}  // namespace lockstep::tracing
