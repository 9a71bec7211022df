// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <deque>
#include <map>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/launch/line_splitter.h>

#include "launch/output_queue.h"

namespace lockstep::launch {

/// Merges the ranks' stdout and stderr, line by line and each line after "[rank N] ", into those of this
/// process. Nothing here blocks: the owner polls what watch() names and passes the events on. While the
/// reader of this process's output is slow, ranks are not read, so their writes wait: nothing is lost and
/// nothing piles up.
class LogMultiplexer {
 public:
  /// Lines of stdout are marked with the rank that wrote them, or not; those of stderr always are.
  explicit LogMultiplexer(bool mark_stdout = true);

  void add_rank(int rank, UniqueFd out, UniqueFd err);
  /// A line of the launcher's own, on stderr.
  void say(std::string_view message);

  void watch(std::vector<pollfd>& events) const;
  /// Events on other descriptors are ignored.
  void handle(const pollfd& event);
  /// No process is left that could write: takes what lies in the pipes and ends unfinished lines.
  void finish();

  /// Lines wait to be written.
  bool pending() const { return !out_.empty() || !err_.empty(); }
  /// The errno value of the first failed write to stdout, or 0; likewise stderr.
  int stdout_error() const { return out_.error(); }
  int stderr_error() const { return err_.error(); }
  const Tail& stderr_tail(int rank) const { return tails_.at(rank); }

 private:
  struct Stream {
    UniqueFd fd{};
    LineSplitter splitter{};
    std::string prefix{};
    OutputQueue* queue = nullptr;
    Tail* tail = nullptr;  // of stderr only
  };

  void take(Stream& stream);
  static void emit(const Stream& stream, std::string_view line);
  OutputQueue& error_queue() { return shared_ ? out_ : err_; }

  OutputQueue out_;
  OutputQueue err_;
  bool mark_stdout_;
  bool shared_;  // stdout and stderr are one file: one queue, or their lines could tear each other
  std::deque<Stream> streams_;
  std::map<int, Tail> tails_;
};

}  // namespace lockstep::launch
