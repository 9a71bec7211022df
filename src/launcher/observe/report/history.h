// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "observe/report/thinned.h"
#include "observe/run.h"
#include "observe/verdict.h"

// What a run did over time, gathered from looks at it, in bounded memory. Times are nanoseconds of the host's steady
// clock.

namespace lockstep::observe {

// The state of a rank at the end of a step, or at a look while a step takes long. Sums since the rank began.
struct RankPoint {
  std::int64_t at = 0;
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  PhaseTimes spent{};
  std::int64_t shortest = 0;  // of the steps since the point before whose times are known; 0: of none
  std::int64_t longest = 0;

  void merge(const RankPoint& later);
};

struct MemoryPoint {
  std::int64_t at = 0;
  std::int64_t resident = 0;  // bytes, the most
  std::int64_t gathered = 0;  // bytes of gathered parameters, the most that a look has seen

  void merge(const MemoryPoint& later);
};

// A number of report().
struct NumberPoint {
  std::int64_t at = 0;
  std::uint64_t step = 0;
  double least = 0;
  double most = 0;
  double sum = 0;
  std::uint64_t count = 0;  // of finite values; the others are only counted
  std::uint64_t not_finite = 0;

  void merge(const NumberPoint& later);
};

// How much later than the first rank a rank entered collectives.
struct LatePoint {
  std::int64_t at = 0;
  std::uint64_t calls = 0;
  std::int64_t sum = 0;  // nanoseconds
  std::int64_t most = 0;

  void merge(const LatePoint& later);
};

// A process, or a thread of it, as a rank.
struct Track {
  int rank = 0;
  std::int64_t pid = 0;
  std::int64_t thread = 0;
  int restarts = 0;
  std::int64_t first_seen = 0;
  std::int64_t last_seen = 0;
  Thinned<RankPoint> points;
  Thinned<MemoryPoint> memory;
  std::map<std::string, Thinned<NumberPoint>> numbers{};
  Thinned<LatePoint> late;
  std::uint64_t steps = 0;          // the last one
  std::uint64_t unseen_steps = 0;   // whose own times were not read
  std::uint64_t last_arrivals = 0;  // collectives that it was the last to enter
  std::map<std::string, std::pair<std::string, std::uint64_t>> traffic{};  // [group]: backend, bytes
};

// A collective in which ranks waited long for the last one.
struct LateArrival {
  std::int64_t at = 0;  // of the last rank
  std::int64_t late = 0;
  int rank = 0;
  std::string call{};
  std::string group{};
};

// A verdict, as long as it held.
struct Fault {
  std::int64_t first = 0;
  std::int64_t last = 0;
  int restarts = 0;
  Verdict verdict{};
  bool stacks_read = false;
  std::string stacks{};  // of the ranks that it names, while it held
};

class History {
 public:
  static constexpr std::size_t kItems = 16'384;  // of each kind of series, over all tracks
  static constexpr std::size_t kMostItems = 2'048;
  static constexpr std::size_t kFewestItems = 32;
  static constexpr std::size_t kTracks = 512;
  static constexpr std::size_t kNumberSeries = 1'024;
  static constexpr std::size_t kFaults = 200;
  static constexpr std::size_t kLateArrivals = 10;
  static constexpr std::size_t kStacks = 10;            // faults with stacks
  static constexpr std::int64_t kHang = 2'000'000'000;  // nanoseconds

  // A look at the run, and the verdict on it.
  void add(const Run& run, const Verdict& verdict);
  // Whether the look that was added last shows a stall that has held for kHang, and whose stacks were not read.
  bool lacks_stacks(const Run& run) const;
  // Those of the ranks that the last fault names, which held until `now`, when they were read.
  void add_stacks(std::string text, std::int64_t now);

  const std::deque<Track>& tracks() const { return tracks_; }
  const std::vector<Fault>& faults() const { return faults_; }
  // The worst ones, latest last.
  const std::vector<LateArrival>& late_arrivals() const { return late_; }
  // Collectives of which all arrivals were seen, and those made in all.
  std::uint64_t collectives_seen() const { return collectives_seen_; }
  std::uint64_t collectives() const { return collectives_; }
  std::size_t dropped_tracks() const { return dropped_tracks_; }
  std::size_t dropped_faults() const { return dropped_faults_; }
  std::size_t dropped_numbers() const { return dropped_numbers_; }

 private:
  Track& track_of(const Rank& rank, std::int64_t now);
  void share_items();
  void add_progress(Track& track, const Rank& rank, std::int64_t now);
  void add_numbers(Track& track, const Progress& progress, std::int64_t now);
  void add_arrivals(const Run& run);
  void keep_late(LateArrival arrival);
  void add_fault(const Run& run, const Verdict& verdict);

  std::deque<Track> tracks_;
  std::vector<Fault> faults_;
  std::size_t stacks_ = 0;
  std::vector<LateArrival> late_;
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::uint64_t>>
      groups_;  // [group]: pids, last collective
  std::uint64_t collectives_seen_ = 0;
  std::uint64_t collectives_ = 0;
  std::size_t dropped_tracks_ = 0;
  std::size_t dropped_faults_ = 0;
  std::size_t dropped_numbers_ = 0;
  std::size_t number_series_ = 0;
};

}  // namespace lockstep::observe
