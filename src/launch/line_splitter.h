// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace lockstep::launch
