// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <poll.h>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "launch/failure_report.h"

namespace lockstep::launch {

// Splits a stream of bytes, read in pieces of any size, into lines.
//
// A carriage return without a newline redraws the line, as progress bars do. At most one redrawn state per
// redraw_interval is emitted as a line, and always the final one. So a progress bar does not flood a
// log.
//
// A line longer than max_line bytes is emitted in pieces of that size, so memory is bounded.
class LineSplitter {
 public:
  using Clock = std::chrono::steady_clock;
  using Sink = std::function<void(std::string_view line)>;  // called once per line, without its newline

  struct Options {
    std::size_t max_line = std::size_t{64} * 1024;
    std::chrono::milliseconds redraw_interval{1000};
  };

  LineSplitter() = default;
  explicit LineSplitter(Options options) : options_(options) {}

  void feed(std::string_view bytes, Clock::time_point now, const Sink& sink);
  // At the end of the stream: emits the last line if it has no newline.
  void finish(const Sink& sink);

 private:
  void append(std::string_view text, Clock::time_point now, const Sink& sink);
  void redraw(Clock::time_point now, const Sink& sink);
  void end_line(const Sink& sink);

  Options options_{};
  std::string line_;
  bool returned_ = false;   // the last byte was a carriage return
  bool continued_ = false;  // pieces of this line have been emitted
  std::optional<Clock::time_point> last_redraw_;
};

// Lines to write to a descriptor that other programs share and that must therefore stay blocking: a terminal
// or pipe is opened again for this queue alone. The caller polls for POLLOUT and calls write_some(). It
// writes at most PIPE_BUF bytes, and only whole lines if they fit, so that lines of several programs on one
// pipe stay whole.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);  // not owned

  void push(std::string_view text) {
    if (error_ == 0) buffer_ += text;
  }
  void write_some();

  int fd() const { return fd_; }
  bool empty() const { return buffer_.empty(); }
  // The producer should wait until the queue is not full.
  bool full() const { return buffer_.size() - written_ > kFull; }
  // The errno value of the write that failed, or 0. Everything pushed afterwards is dropped.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kFull = std::size_t{256} * 1024;

  std::size_t next_piece() const;

  UniqueFd own_;
  int fd_;
  std::string buffer_;
  std::size_t written_ = 0;
  int error_ = 0;
};

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
  bool prefix_names_rank = false;  // the lines of Lockstep in the rank need not
  // A line for which it returns true is not passed on. Optional.
  std::function<bool(std::string_view line)> takes{};
};

// Merges the ranks' stdout and stderr into those of this process, line by line, with a prefix per rank. Only
// writing files blocks: the owner polls the descriptors of watch() and passes the events on. While the reader
// of this process's output is slow, ranks are not read and their writes block, so no output is lost and
// memory is bounded.
class LogMultiplexer {
 public:
  LogMultiplexer();

  void add_rank(int rank, RankStream out, RankStream err);
  // A rank was replaced: reads what is left of its pipes, and from then on these ones for the same outputs. Its tail
  // begins anew.
  void replace_rank(int rank, UniqueFd out, UniqueFd err);
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
  // Whether the lines of that rank's stderr have gone to this process's stderr.
  bool shows_stderr(int rank) const { return shows_stderr_.contains(rank); }

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
  void pass_on(const Stream& stream, std::string_view line);
  void write_to_file(const UniqueFd& file, std::string_view text);
  OutputQueue& error_queue() { return shared_ ? out_ : err_; }

  OutputQueue out_;
  OutputQueue err_;
  bool shared_;  // stdout and stderr are one file: one queue keeps lines whole
  std::deque<Stream> streams_;
  std::map<int, Tail> tails_;
  std::set<int> shows_stderr_;
  FilteredLog filtered_out_;
  FilteredLog filtered_err_;
  int file_error_ = 0;
};

// The prefix of a rank's lines on descriptor `fd`, with a colour per rank on a terminal.
std::string rank_prefix(const std::string& text, int rank, int fd);

}  // namespace lockstep::launch
