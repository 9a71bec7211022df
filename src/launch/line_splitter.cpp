// SPDX-License-Identifier: BSD-3-Clause
#include "launch/line_splitter.h"

#include <algorithm>

namespace lockstep::launch {

void LineSplitter::feed(std::string_view bytes, Clock::time_point now, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t length = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (length > 0) {
      append(bytes.substr(0, length), now, sink);
      bytes.remove_prefix(length);
      continue;
    }
    if (bytes.front() == '\n') {
      end_line(sink);
    } else {
      returned_ = true;
    }
    bytes.remove_prefix(1);
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!line_.empty()) end_line(sink);
}

void LineSplitter::append(std::string_view text, Clock::time_point now, const Sink& sink) {
  if (returned_) redraw(now, sink);
  while (line_.size() + text.size() > options_.max_line) {
    const std::size_t room = options_.max_line - line_.size();
    line_ += text.substr(0, room);
    text.remove_prefix(room);
    sink(line_);
    line_.clear();
    continued_ = true;
  }
  line_ += text;
}

void LineSplitter::redraw(Clock::time_point now, const Sink& sink) {
  returned_ = false;
  if (line_.empty()) return;
  if (!last_redraw_ || now - *last_redraw_ >= options_.redraw_interval) {
    last_redraw_ = now;
    sink(line_);
  }
  line_.clear();
}

void LineSplitter::end_line(const Sink& sink) {
  // A long line may end exactly at the end of a piece.
  if (!line_.empty() || !continued_) sink(line_);
  line_.clear();
  returned_ = false;
  continued_ = false;
  last_redraw_.reset();
}

}  // namespace lockstep::launch
