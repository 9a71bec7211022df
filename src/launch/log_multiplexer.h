// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/launch/line_splitter.h>

#include "launch/output_queue.h"

namespace lockstep::launch {

/// A file that gets the lines which hold one of some texts, from all ranks.
struct FilteredLog {
  UniqueFd file{};
  std::vector<std::string> texts{};
};

/// One stream of a rank.
struct RankStream {
  UniqueFd pipe{};
  UniqueFd copy{};        ///< gets every byte; may be empty
  bool passed_on = true;  ///< whether its lines go on to this process's stream
  std::string prefix{};
};

/// Merges the ranks' stdout and stderr, line by line and each line after its rank's prefix, into those of
/// this process. Nothing here blocks but writing files: the owner polls what watch() names and passes the
/// events on. While the reader of this process's output is slow, ranks are not read, so their writes wait:
/// nothing is lost and nothing piles up.
class LogMultiplexer {
 public:
  LogMultiplexer();

  void add_rank(int rank, RankStream out, RankStream err);
  /// For this attempt's lines.
  void set_filters(FilteredLog out, FilteredLog err);
  /// A line of the launcher's own, on stderr.
  void say(std::string_view message);

  void watch(std::vector<pollfd>& events) const;
  /// Events on other descriptors are ignored.
  void handle(const pollfd& event);
  /// Takes what that rank has written so far.
  void drain(int rank);
  /// No process is left that could write: takes what lies in the pipes and ends unfinished lines. Ranks may
  /// be added anew after that; the tails stay until then.
  void finish();

  /// Lines wait to be written.
  bool pending() const { return !out_.empty() || !err_.empty(); }
  /// The errno value of the first failed write to stdout, or 0.
  int stdout_error() const { return out_.error(); }
  /// The errno value of the first failed write to a log file, or 0.
  int file_error() const { return file_error_; }
  const Tail& stderr_tail(int rank) const { return tails_.at(rank); }

 private:
  struct Stream {
    int rank = 0;
    RankStream of_rank{};
    LineSplitter splitter{};
    OutputQueue* queue = nullptr;
    const FilteredLog* filtered = nullptr;
    Tail* tail = nullptr;  // of stderr only
  };

  void add_stream(Stream stream);
  void take(Stream& stream);
  void take_all(Stream& stream);
  void end(Stream& stream);
  void emit(const Stream& stream, std::string_view line);
  void write_to_file(const UniqueFd& file, std::string_view text);
  OutputQueue& error_queue() { return shared_ ? out_ : err_; }

  OutputQueue out_;
  OutputQueue err_;
  bool shared_;  // stdout and stderr are one file: one queue, or their lines could tear each other
  std::deque<Stream> streams_;
  std::map<int, Tail> tails_;
  FilteredLog filtered_out_;
  FilteredLog filtered_err_;
  int file_error_ = 0;
};

/// What a rank's lines begin with on descriptor `fd`, in a colour of its own where that is a terminal.
std::string rank_prefix(const std::string& text, int rank, int fd);

}  // namespace lockstep::launch
