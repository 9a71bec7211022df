// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "launch/failure_report.h"
#include "launch/line_splitter.h"
#include "launch/output_queue.h"

namespace lockstep::launch {

// A file for the lines of all ranks that contain one of `texts`.
struct FilteredLog {
  UniqueFd file{};
  std::vector<std::string> texts{};
};

// One stream of a rank.
struct RankStream {
  UniqueFd pipe{};
  UniqueFd copy{};        // gets every byte; optional
  bool passed_on = true;  // whether its lines go to this process's stream
  std::string prefix{};
};

// Merges the ranks' stdout and stderr into those of this process, line by line, with a prefix per rank. Only
// writing files blocks: the owner polls the descriptors of watch() and passes the events on. While the reader
// of this process's output is slow, ranks are not read and their writes block, so no output is lost and
// memory is bounded.
class LogMultiplexer {
 public:
  LogMultiplexer();

  void add_rank(int rank, RankStream out, RankStream err);
  // For the lines of this attempt.
  void set_filters(FilteredLog out, FilteredLog err);
  // A line of the launcher itself, on stderr.
  void print(std::string_view message);

  void watch(std::vector<pollfd>& events) const;
  // Events on other descriptors are ignored.
  void handle(const pollfd& event);
  // Reads what that rank has written so far.
  void drain(int rank);
  // REQUIRES that no process can write any more. Reads the rest of the pipes and ends unfinished lines. Ranks
  // may be added afterwards; the tails stay until then.
  void finish();

  // Whether lines wait to be written.
  bool pending() const { return !out_.empty() || !err_.empty(); }
  // The errno value of the first failed write to stdout, or 0.
  int stdout_error() const { return out_.error(); }
  // The errno value of the first failed write to a log file, or 0.
  int file_error() const { return file_error_; }
  const Tail& stderr_tail(int rank) const { return tails_.at(rank); }

 private:
  struct Stream {
    int rank = 0;
    RankStream of_rank{};
    LineSplitter splitter{};
    OutputQueue* queue = nullptr;
    const FilteredLog* filtered = nullptr;
    Tail* tail = nullptr;  // stderr only
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
  bool shared_;  // stdout and stderr are one file: one queue keeps lines whole
  std::deque<Stream> streams_;
  std::map<int, Tail> tails_;
  FilteredLog filtered_out_;
  FilteredLog filtered_err_;
  int file_error_ = 0;
};

// The prefix of a rank's lines on descriptor `fd`, with a colour per rank on a terminal.
std::string rank_prefix(const std::string& text, int rank, int fd);

}  // namespace lockstep::launch
