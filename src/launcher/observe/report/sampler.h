// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "observe/find_runs.h"
#include "observe/report/history.h"

namespace lockstep::observe {

// Looks at the ranks below a process and keeps their history. Not thread-safe.
class Sampler {
 public:
  static constexpr std::chrono::milliseconds kPeriod{500};

  explicit Sampler(int launcher) : launcher_(launcher) {}

  // So many ranks have been started. Other ones may have ended.
  void expect(std::size_t ranks);
  // One more has been started.
  void rank_started();
  // A rank has ended.
  void rank_ended();
  // `judged`: the launcher does not stop the ranks, so that a verdict has a meaning.
  void look(bool judged);
  // Until the next look: shorter while ranks begin.
  std::chrono::milliseconds wait() const;

  const History& history() const { return history_; }
  std::uint64_t looks() const { return looks_; }
  // The processor time of this thread in look().
  double processor_seconds() const { return static_cast<double>(processor_time_) / 1e9; }
  // The version of LibTorch in a rank: "2.15.0+cpu"; empty if it is not known.
  const std::string& libtorch() const { return libtorch_; }

 private:
  using Clock = std::chrono::steady_clock;

  void add(bool judged);
  void search();
  std::string stacks_of_named(const Run& run, const Verdict& verdict) const;
  bool misses_ranks() const { return ranks_.progress.size() < expected_; }

  int launcher_;
  std::size_t expected_ = 0;
  Clock::time_point started_at_{};  // of the ranks
  Clock::time_point searched_at_{};
  bool search_due_ = false;
  ObservedRun ranks_{};
  History history_{};
  std::uint64_t looks_ = 0;
  std::int64_t processor_time_ = 0;
  std::string libtorch_{};
};

// The version of LibTorch that a process has loaded: "2.15.0+cpu". Empty if its folder does not tell.
std::string libtorch_version_of(int pid);

}  // namespace lockstep::observe
