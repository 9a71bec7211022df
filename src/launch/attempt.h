// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include <lockstep/launch/environment.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/launch/options.h>

#include "launch/attempt_files.h"
#include "launch/log_multiplexer.h"

namespace lockstep::launch {

/// This node's ranks, from one start to their end.
class Attempt {
 public:
  /// Starts them. `file` is the program, with a slash in its name. Throws ProgramError or LaunchError when
  /// one cannot be started; those before it run then, as children of this process.
  Attempt(const LaunchOptions& options, const std::string& file, const NodePlace& place, LogFolder& folder,
          LogMultiplexer& logs);

  const NodePlace& place() const { return place_; }
  /// pid -> local rank, of those that have not been taken by end_of().
  const std::map<pid_t, int>& alive() const { return alive_; }
  /// Ranks, sorted.
  std::vector<int> alive_ranks() const;
  /// The end of the rank that this child was, which is not alive any more; nullopt when it was none.
  std::optional<RankExit> end_of(const RankExit& child);
  /// To every living rank's process group.
  void signal_ranks(int signal) const;
  /// With what that rank wrote and recorded.
  FailureReport report(const RankExit& first) const;

 private:
  void start(int local_rank, const std::string& file, const std::vector<int>& cpus);
  RankStream stream_of(int local_rank, bool is_out, UniqueFd pipe) const;
  std::string prefix_of(int local_rank) const;
  std::filesystem::path file_of(int local_rank, const char* name) const;
  void set_filters();

  const LaunchOptions& options_;
  NodePlace place_;
  LogMultiplexer& logs_;
  std::filesystem::path folder_;        // empty: no files
  std::map<int, ErrorRecord> records_;  // by local rank
  std::map<pid_t, int> alive_;
};

}  // namespace lockstep::launch
