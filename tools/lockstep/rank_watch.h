// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/unique_fd.h"
#include "launch/options.h"
#include "launch/run_notes.h"
#include "observe/find_runs.h"
#include "observe/frozen_ranks.h"
#include "run_arguments.h"

namespace lockstep::cli {

// A rank that is last by `factor` in each of `steps` steps is named.
struct SlowRanks {
  double factor = 0;
  std::size_t steps = 0;
  bool are_replaced = false;  // while fewer than `max_restarts` restarts have taken place
  int max_restarts = 0;
};

// What `lockstep run` does with its ranks while they run.
struct WatchOptions {
  std::optional<std::chrono::milliseconds>
      progress_timeout{};  // a rank without progress for so long is killed
  std::optional<SlowRanks> slow{};
};

// nullopt if `arguments` ask for no watch. Throws ArgumentError that names the option.
std::optional<WatchOptions> watch_options(const RunArguments& arguments,
                                          const launch::LaunchOptions& options);

// Looks at the ranks below this process from outside, names slow ones and kills frozen ones. The launcher then does
// what it does when a rank dies.
class RankWatch {
 public:
  // `ranks`: that the launcher starts. `notes`: of the run; kills are noted there.
  RankWatch(const WatchOptions& options, int ranks, launch::RunNotes& notes);

  // Until `stop` becomes readable.
  void watch(int stop);

 private:
  using Clock = std::chrono::steady_clock;

  void look();
  bool must_search() const;
  void search();
  void end_frozen(const observe::Run& run);
  void name_slow(const observe::Run& run);
  // The pid of a rank as this process sees it; 0: it has ended.
  int visible_pid(const observe::Rank& rank) const;
  std::string stack_of(const observe::Rank& rank) const;
  // False, with a warning for each process, if not. Also if it has ended.
  bool can_kill(const observe::Rank& rank);
  void kill(const observe::Rank& rank, const std::string& reason);
  // Returns 0 or errno's code.
  int signal(const observe::Rank& rank, int number) const;

  WatchOptions options_;
  std::size_t count_;
  std::chrono::milliseconds period_;
  observe::ObservedRun ranks_{};
  std::map<int, UniqueFd> processes_{};  // [pid as this process sees it] a pidfd
  Clock::time_point searched_at_{};
  bool is_problem_told_ = false;
  bool has_failed_ = false;
  std::set<std::int64_t> immortal_{};  // pids of ranks that cannot be killed
  std::optional<observe::FrozenRanks> frozen_{};
  launch::RunNotes& notes_;
  std::map<std::int64_t, std::uint64_t> named_at_{};  // [pid of a slow rank] its steps when it was named last
};

}  // namespace lockstep::cli
