// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::launch {

// How one rank ended.
struct RankExit {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int code = 0;    // its exit code; meaningless when `signal` is not 0
  int signal = 0;  // the signal that killed it, or 0
  bool core_dumped = false;
  bool cpu_limit = false;   // its CPU time had reached the hard limit of `ulimit -t`, at which SIGKILL comes
  bool left_early = false;  // it exited with code 0 while the others are in elastic::run()
  // Why the launcher itself has killed the rank, as in "no progress for 60.2 s; --progress-timeout 60"; empty: it has not.
  std::string killed_for{};
  // Why the others do not go on without it, as in "which leaves 1 rank, fewer than --min-ranks 2"; empty: nothing to say.
  std::string too_few{};
  bool interrupted = false;  // it exited with kExitInterrupted, which is no failure

  bool failed() const { return (code != 0 && !interrupted) || signal != 0 || left_early; }
};

// As in "SIGSEGV".
std::string signal_name(int signal);

// As in "exited with code 7", "was killed by SIGSEGV (core dumped)" and "was killed by SIGKILL from the launcher (no
// progress for 60.2 s; --progress-timeout 60)".
std::string describe(const RankExit& exit);

// As in a shell: the exit code, or 128 + the signal; 1 for a rank that left early.
int exit_code(const RankExit& exit);

// The last lines of a stream, in bounded memory.
class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineBytes = 1000;

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

// Why a run, or one attempt of it, failed.
struct FailureReport {
  // The rank that failed first; meaningless when `reason` is not empty.
  RankExit first{};
  // If no rank failed: a lost node, or too few nodes.
  std::string reason{};
  std::string host{};
  int restarts = 0;        // number of restarts before
  double time = 0;         // of the failure, in seconds since 1970
  std::string message{};   // the exception that the rank has recorded (TORCHELASTIC_ERROR_FILE), or empty
  std::string log_file{};  // with the rank's stderr, or empty
  std::deque<std::string> stderr_tail{};
  bool lost_peer = false;  // the rank reported that it failed because another rank was gone
  bool ends_run = false;   // RunPhase::stopped: the ranks do not start again, even if restarts are left
  std::vector<RankExit> later{};   // ranks of this node that failed afterwards
  std::vector<int> stopped{};      // ranks of this node that the launcher stopped, sorted
  std::vector<int> finished{};     // ranks of this node that ended without an error before, sorted
  std::vector<int> interrupted{};  // ranks of this node that had ended with kExitInterrupted before, sorted
};

// The exit code of the launcher.
int exit_code(const FailureReport& report);

// "rank 3 exited with code 1", or the reason if no rank failed.
std::string headline(const FailureReport& report);

// Whether these last lines of a rank report that another rank was gone.
bool reports_lost_peer(const std::deque<std::string>& stderr_tail);

// The final report of the launcher, one string per line. The last line names the rank that failed first.
// `shown`: the reader of the report has seen the rank's stderr.
std::vector<std::string> report_lines(const FailureReport& report, bool shown);

// The content of --error-file: torchrun's error.json ({"message": {"message", "errorCode", "extraInfo"}}) and
// the report under "lockstep".
std::string report_json(const FailureReport& report);

// The failures of this node's ranks in one attempt, and which one was first.
class FailureTracker {
 public:
  // A rank failed before the stop. The first failure is the cause, unless that rank lost a peer and a later
  // one did not.
  void add(FailureReport report);
  // A rank failed while it was being stopped.
  void add_later(const RankExit& exit) { later_.push_back(exit); }
  // A rank ended without an error.
  void add_finished(int rank);
  // A rank ended with kExitInterrupted.
  void add_interrupted(int rank);
  // The stop signal, or SIGKILL after the grace period, ended a rank.
  void add_stopped(int rank, bool killed = false) {
    stopped_.push_back(rank);
    killed_ = killed_ || killed;
  }

  bool any() const { return first_.has_value(); }
  // Whether ranks were interrupted and all others, if any, ended without an error. `with_stopped`: or by the stop
  // signal.
  bool interrupted(bool with_stopped = false) const {
    const bool has_stopped = with_stopped ? killed_ : !stopped_.empty();
    return !interrupted_.empty() && !first_ && later_.empty() && !has_stopped;
  }
  // REQUIRES any().
  const FailureReport& first() const { return *first_; }
  // Whether the first failure may be a consequence of one that is not known yet.
  bool may_be_consequence() const { return first_ && first_->lost_peer; }
  // The report with the failures of this node: `final_report` of all nodes, else first(); nullopt if nothing
  // failed.
  std::optional<FailureReport> summary(const std::optional<FailureReport>& final_report) const;

 private:
  std::optional<FailureReport> first_;
  std::vector<RankExit> later_;
  std::vector<int> stopped_;
  bool killed_ = false;           // one of them
  std::vector<int> finished_;     // before the first failure
  std::vector<int> interrupted_;  // before the first failure
};

// For nlohmann::json.
void to_json(nlohmann::json& json, const RankExit& exit);
void from_json(const nlohmann::json& json, RankExit& exit);
void to_json(nlohmann::json& json, const FailureReport& report);
void from_json(const nlohmann::json& json, FailureReport& report);

}  // namespace lockstep::launch
