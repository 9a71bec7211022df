// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/rank_progress.h"
#include "observe/run.h"

// Figures that follow from a Run. Times are nanoseconds.

namespace lockstep::observe {

// The memory of a process, in bytes; 0: not known.
struct MemoryUse {
  std::int64_t resident = 0;
  std::int64_t proportional = 0;  // PSS: a page that n processes share counts as 1/n
};

// The call that a rank waits for, or that has failed.
struct CallUnderWay {
  std::string group{};
  std::string backend{};
  Call call{};
  std::int64_t age = 0;
  std::uint64_t bytes = 0;  // of the rank's first tensor; 0: none, or not known
};

// Bytes of the tensors of a backend's calls.
struct Traffic {
  std::string backend{};
  double bytes_per_second = 0;
};

struct RankFigures {
  // Over the steps that the rank publishes, at most 64. Once the last step takes more than twice their mean, its time
  // counts too. 0: fewer than two steps.
  double steps_per_second = 0;
  double samples_per_second = 0;
  // The part of these steps' time in each phase; with fewer than two steps, of the time since the rank began. 0 without
  // progress.
  std::array<double, kPhases> shares{};
  std::int64_t phase_age = 0;
  std::optional<CallUnderWay> call{};  // the latest one
  std::vector<Traffic> traffic{};      // by the name of the backend; empty without an earlier reading
  MemoryUse memory{};                  // of the rank's process
};

// The last collective of a group that all its ranks on this host have entered.
struct LastArrival {
  std::string group{};
  Call call{};              // of the rank that entered it last
  int rank = 0;             // its number in the job
  std::int64_t behind = 0;  // after the first rank
};

struct Figures {
  std::vector<RankFigures> ranks{};     // in the order of Run::ranks
  std::vector<LastArrival> arrivals{};  // by the name of the group; groups of one rank are left out
  double steps_per_second = 0;          // of the slowest rank that makes steps
  double samples_per_second = 0;        // of all ranks
  std::vector<Traffic> traffic{};       // of all ranks
};

// `earlier`: a reading of the run before; nullptr: none. `memory`: [pid as Rank::pid].
Figures figures_of(const Run& run, const Run* earlier = nullptr,
                   const std::map<std::int64_t, MemoryUse>& memory = {});

nlohmann::json to_json(const Figures& figures);

}  // namespace lockstep::observe
