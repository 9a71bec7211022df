// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::launch {

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

}  // namespace lockstep::launch
