// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// Cuts one stream of bytes, read in pieces of any size, into whole lines.
///
/// A carriage return that no newline follows means "draw this line again", as progress bars do. What a
/// terminal would have overdrawn is given as a line of its own at most once a redraw_interval and otherwise
/// dropped; the final state of the line is always given. So a bar neither floods a log nor stays invisible
/// until its end.
///
/// A line longer than max_line bytes is given in pieces of that size, so memory is bounded.
class LineSplitter {
 public:
  using Clock = std::chrono::steady_clock;
  using Sink = std::function<void(std::string_view line)>;  ///< called once a line, without its newline

  struct Options {
    std::size_t max_line = std::size_t{64} * 1024;
    std::chrono::milliseconds redraw_interval{1000};
  };

  LineSplitter() = default;
  explicit LineSplitter(Options options) : options_(options) {}

  void feed(std::string_view bytes, Clock::time_point now, const Sink& sink);
  /// The stream has ended: gives the last line if no newline ended it.
  void finish(const Sink& sink);

 private:
  void append(std::string_view text, Clock::time_point now, const Sink& sink);
  void redraw(Clock::time_point now, const Sink& sink);
  void end_line(const Sink& sink);

  Options options_{};
  std::string line_;
  bool returned_ = false;   // a carriage return came last
  bool continued_ = false;  // earlier pieces of this line were given already
  std::optional<Clock::time_point> last_redraw_;
};

}  // namespace lockstep::launch
