// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/sockets.h"
#include "launch/account.h"
#include "launch/coordinator_client.h"
#include "launch/host_control.h"
#include "launch/log_files.h"
#include "launch/log_multiplexer.h"
#include "launch/messages.h"
#include "launch/options.h"
#include "launch/rank_supervisor.h"
#include "launch/run_store_server.h"
#include "launch/worker_group.h"

namespace lockstep::launch {

// Note [One launch on one node]
//
// NodeSupervisor adds to RankSupervisor (note [Supervision of ranks]) the output of the ranks and the
// agreement with the other nodes. The Coordinator of the run decides; this class obeys its messages:
//
//   Reserve  answer with a port for rank 0
//   Start    start the ranks: idle -> running. With OnLoss::replace it replaces single ranks itself, while
//            WorkerGroup::can_replace(); the next Failed tells the Coordinator how many restarts that took. With
//            OnLoss::shrink it has the others go on. On several nodes Replaced tells the Coordinator at once, and Restarts
//            tells all nodes.
//   Lost     another node is lost. The ranks go on if they can, or Failed says that they cannot
//   Adopt    have a second launcher take the place of a lost node (note [Nodes that move])
//   Stop     stop them, and answer with Stopped when no process is left
//   End      the run is over: stop the ranks, report, and return
//
// In the other direction go Failed (the first failure of this node), Finished (all ranks succeeded) and
// Leaving (a stop signal came, or nobody reads the output). After a stop signal no message is handled.
class NodeSupervisor : private RankSupervisor {
 public:
  NodeSupervisor(const LaunchOptions& options, const std::string& file, bool is_host, int parent);

  int run();

 private:
  std::optional<RankExit> take_exit(const RankExit& child) override;
  bool has_ranks() const override { return workers_ && !workers_->alive().empty(); }
  // In lost_ranks.cpp.
  bool overcome(RankExit& exit) override;
  bool replace(const RankExit& exit);
  std::string counted(const std::string& line) const;
  bool go_on_without(RankExit& exit);
  void fill_spares();
  void serve_store();
  void on(const Restarts& restarts);
  void on(const Lost& lost);
  void on(const Adopt& adopt) const;

  FailureReport report(const RankExit& exit) override;
  void signal_ranks(int signal) override { workers_->signal_ranks(signal); }
  std::chrono::milliseconds leftover_limit() const override;
  void on_signal(int signal) override;
  void on_first_failure() override;
  void on_grace_period_over() override;
  void on_all_gone() override;

  void loop();
  void warn_ranks(int signal);
  bool is_second(int signal) const;
  std::chrono::milliseconds poll_timeout() const;
  void handle_control();
  void check_output();
  void handle_messages();
  std::optional<ToNode> receive();
  void on(const Challenge& /*challenge*/) {}
  void on(const Welcome& welcome);
  void on(const Reserve& reserve);
  void on(const Start& start);
  void on(const Stop& stop);
  void on(const Notice& notice) { tell(notice.text); }
  void on(const End& end);
  [[noreturn]] void on(const Refused& refused);
  void on(const Alive& /*alive*/) {}
  void on(const Look& look) const;
  void on(const Seen& /*seen*/) {}
  void tell(const std::string& news);
  void log_waiting();
  void expect_answer();
  void check_coordinator();
  End end_without_coordinator(const std::string& reason);

  std::optional<FailureReport> failure() const {
    return failures().summary(end_ ? end_->failure : std::nullopt);
  }
  bool is_interrupted() const;
  bool is_reported_here() const;
  void account(AccountEntry entry) const;
  void print_report();
  void write_error(const FailureReport& failure);
  int result() const;
  bool over() const { return phase() == Phase::idle && (end_ || stop_signal_ != 0); }

  const LaunchOptions& options_;
  const std::string& file_;
  bool is_host_;  // the coordinator is in this launcher
  LogMultiplexer logs_;
  LogFolder log_folder_;
  std::unique_ptr<CoordinatorClient> client_;
  std::optional<HostControl> control_;
  std::optional<ReservedPort> port_;
  std::optional<RunStoreServer> store_;  // of node 0, if ranks on several nodes are replaced
  std::optional<WorkerGroup> workers_;
  struct Replacement {
    int rank = 0;
    std::string line{};
  };
  std::vector<Replacement> replacements_;  // that the coordinator has not counted yet
  Deadline log_waiting_at_;
  bool waiting_logged_ = false;
  bool stdout_error_logged_ = false;
  bool file_error_logged_ = false;
  std::optional<std::chrono::milliseconds> silence_limit_;  // the coordinator's
  std::optional<Deadline> answer_due_;                      // while this node waits for the coordinator
  int silences_ = 0;             // answers that were due before, since its last message
  bool stop_requested_ = false;  // by a Stop that has no answer yet
  int stop_signal_ = 0;
  std::optional<Deadline> second_signal_from_;  // until then stop_signal_ comes again on another way
  bool stopped_by_signal_ = false;              // of the launcher of another node
  std::optional<End> end_;
  bool end_is_known_to_all_ = false;  // the coordinator has sent it
};

// Runs this node's ranks, restarts them after failures as the run allows, and forwards their output. Returns
// the exit code of the launch when no process is left, background processes of ranks included. `file`: the
// program, with a slash in its name; `is_host`: the coordinator of the run is at this launcher.
//
// - All ranks of all nodes exit with 0: 0. Processes that they left get SIGTERM and, after the grace period,
//   SIGKILL.
// - A rank fails while OnLoss::replace allows a replacement: what it left is killed, and it starts again alone.
// - A rank fails, and with OnLoss::shrink at least min_ranks are left in elastic::run(): what it left is killed.
// - Another node is lost, and OnLoss allows that its place is taken: the ranks here go on. If OnLoss::oversubscribe wants
//   its ranks on this host, the launcher's first process starts a launcher for them.
// - A rank fails otherwise: the ranks of all nodes are stopped in the same way, and restarted while max_restarts
//   allows. After that the last line of a report on stderr names the rank that failed first; its exit code,
//   or 128 + the signal that killed it.
// - A stop signal: it is sent to every rank's process group, then as above. A second SIGINT or SIGQUIT, or the
//   same signal from a second later on, kills the ranks immediately. 128 + the signal.
// - A warning (see is_warning()): it is sent to every rank, and the run continues.
// - Ranks end with kExitInterrupted and no rank fails, also after one of these signals: kExitInterrupted. No rank
//   is restarted or replaced for it.
// - stdout has no reader any more: as for the signal SIGPIPE.
// - `parent` (a pidfd) becomes readable: all processes are killed immediately.
//
// REQUIRES to run as the body of run_guarded(). Throws ProgramError or LaunchError when a rank cannot be
// started or the other nodes cannot be reached; no process is left then.
int supervise(const LaunchOptions& options, const std::string& file, bool is_host, int parent);

}  // namespace lockstep::launch
