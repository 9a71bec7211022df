// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

/// How one rank ended.
struct RankExit {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int code = 0;    ///< its exit code; meaningless when `signal` is not 0
  int signal = 0;  ///< the signal that killed it, or 0
  bool core_dumped = false;

  bool failed() const { return code != 0 || signal != 0; }
};

/// As in "SIGSEGV".
std::string signal_name(int signal);

/// As in "exited with code 7" and "was killed by SIGSEGV (core dumped)".
std::string describe(const RankExit& exit);

/// What a shell would give: the exit code, or 128 + the signal.
int exit_code(const RankExit& exit);

/// The last lines of a stream, in bounded memory.
class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineBytes = 1000;

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

/// Why a run, or one attempt of it, failed.
struct FailureReport {
  /// The rank that failed first; meaningless when `reason` is not empty.
  RankExit first{};
  /// What failed when it was no rank: a node that was lost, nodes that did not come.
  std::string reason{};
  std::string host{};
  int restarts = 0;        ///< how often the ranks had been started again before
  double time = 0;         ///< when it was noticed: seconds since 1970
  std::string message{};   ///< the exception that the rank has recorded (TORCHELASTIC_ERROR_FILE), or empty
  std::string log_file{};  ///< with the rank's stderr, or empty
  std::deque<std::string> stderr_tail{};
  std::vector<RankExit> later{};  ///< of this node: ranks that failed by themselves after that
  std::vector<int> stopped{};     ///< of this node: ranks that the launcher stopped, sorted
};

/// What the launcher exits with.
int exit_code(const FailureReport& report);

/// "rank 3 exited with code 1", or the reason when it was no rank.
std::string headline(const FailureReport& report);

/// Whether a rank with these last lines says itself that it failed because another rank was gone.
bool is_consequence(const std::deque<std::string>& stderr_tail);

/// What the launcher says last of all, one string a line; the very last line names the rank that failed
/// first.
std::vector<std::string> report_lines(const FailureReport& report);

/// What --error-file gets: torchrun's error.json ({"message": {"message", "errorCode", "extraInfo"}}) with
/// Lockstep's findings beside it under "lockstep".
std::string report_json(const FailureReport& report);

}  // namespace lockstep::launch
