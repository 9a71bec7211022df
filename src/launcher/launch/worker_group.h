// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/run_memory.h"
#include "launch/environment.h"
#include "launch/failure_report.h"
#include "launch/log_files.h"
#include "launch/log_multiplexer.h"
#include "launch/options.h"
#include "launch/spare.h"
#include "machine/command.h"

namespace lockstep::launch {

// Starts one rank, as start_program() does: like torchrun's, it leads its own session, so Ctrl-C reaches it
// only through the launcher, and its stdin is /dev/null, because ranks would compete for the input of a
// terminal. Throws ProgramError when it cannot be executed, and LaunchError when the system refuses a process
// or a pipe.
machine::RunningProgram start_rank(const machine::Program& program);

// Distributes this node's cores over its ranks.
class RankCores {
 public:
  explicit RankCores(const LaunchOptions& options);

  // The CPUs to which the rank is bound; empty: not bound.
  const std::vector<int>& cpus(int local_rank) const {
    return cpus_.at(static_cast<std::size_t>(local_rank));
  }
  // Threads of the rank's operators, if OMP_NUM_THREADS is not set.
  int threads(int local_rank) const;

 private:
  std::vector<int> threads_;  // of the node that is adopted; else empty
  std::vector<std::vector<int>> cpus_;
  int share_;  // of the usable cores
};

// [local rank] what each rank has, OMP_NUM_THREADS of the launcher included.
std::vector<int> threads_of_ranks(const LaunchOptions& options);

// This node's ranks in one attempt. PyTorch: WorkerGroup of torch.distributed.elastic.
class WorkerGroup {
 public:
  // Starts the ranks. `file`: the program, with a slash in its name; `after_start`: called after each start of a process,
  // which can take kExecLimit. Throws ProgramError or LaunchError when one cannot be started; ranks started before keep
  // running as children of this process.
  WorkerGroup(const LaunchOptions& options, const std::string& file, const NodeAssignment& assignment,
              LogFolder& folder, LogMultiplexer& logs, std::function<void()> after_start);

  // `restarts`: those of single ranks included.
  const NodeAssignment& assignment() const { return assignment_; }
  // pid -> local rank, without those returned by take_exit().
  const std::map<pid_t, int>& alive() const { return alive_; }
  // Ranks, sorted.
  std::vector<int> alive_ranks() const;
  // The exit of the rank that `child` was, and removes it from alive(); nullopt if `child` was not a rank.
  std::optional<RankExit> take_exit(const RankExit& child, bool is_stopping);
  // Whether ranks can fail alone: not with OnLoss::restart, and all ranks are in elastic::run().
  bool is_in_elastic_run() const;
  // Whether a rank that has failed can be replaced: replaces_ranks(), is_in_elastic_run(), and restarts are left.
  bool can_replace() const;
  // The rank has ended, and the others go on without it. Returns their number, those included that have ended since.
  // REQUIRES OnLoss::shrink.
  int lose(int local_rank) const;
  // The ranks of another host are lost: those of this one end their calls and form their group again. REQUIRES
  // is_in_elastic_run().
  void lose_others() const;
  // A spare becomes the rank that has ended, or its program is started again; assignment().restarts grows by one.
  // Returns its pid. Throws ProgramError or LaunchError.
  pid_t replace(int local_rank);
  // The run has had so many restarts, those on other nodes included.
  void count_restarts(int restarts) { assignment_.restarts = std::max(assignment_.restarts, restarts); }
  // Starts spares up to their number, and not more than restarts are left. Throws ProgramError or LaunchError.
  void fill_spares();
  // Whether `child` was a spare that no rank has needed. None is started in its place.
  bool take_spare(pid_t child);
  // To every living rank's process group. Spares are not needed any more.
  void signal_ranks(int signal);
  // To the process of every living rank, not to what it has started.
  void warn_ranks(int signal) const;
  // With the rank's last stderr lines and recorded exception.
  FailureReport report(const RankExit& first) const;

 private:
  machine::RunningProgram start(int local_rank);
  std::optional<machine::RunningProgram> use_spare(int local_rank);
  ErrorRecord new_record(int local_rank) const;
  RankStream stream_of(int local_rank, bool is_out, UniqueFd pipe) const;
  std::string prefix_of(int local_rank) const;
  std::filesystem::path file_of(int local_rank, const char* name) const;
  void set_filters();

  const LaunchOptions& options_;
  const std::string& file_;
  NodeAssignment assignment_;
  LogMultiplexer& logs_;
  std::function<void()> after_start_;
  RankCores cores_;
  std::optional<RunMemory> memory_;     // with OnLoss::replace and OnLoss::shrink
  std::filesystem::path folder_;        // empty: no files
  std::map<int, ErrorRecord> records_;  // by local rank
  std::map<pid_t, int> alive_;
  int wanted_spares_;
  std::vector<Spare> spares_;
};

}  // namespace lockstep::launch
