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

struct FailureReport {
  RankExit first{};
  std::string host{};
  std::deque<std::string> stderr_tail{};  ///< the first failing rank's
  std::vector<RankExit> later{};  ///< failures after that, in most cases because the launcher stopped them
};

/// What the launcher says last of all, one string a line; the very last line names the rank that failed
/// first.
std::vector<std::string> report_lines(const FailureReport& report);

}  // namespace lockstep::launch
