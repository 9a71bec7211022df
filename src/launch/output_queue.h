// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <lockstep/base/unique_fd.h>

namespace lockstep::launch {

/// Whole lines on their way to a descriptor that other programs share, so that it must not be made
/// non-blocking: a terminal or pipe is opened once more for this queue alone. The caller polls for POLLOUT
/// and then calls write_some(), which writes no more than a pipe takes at once, and whole lines where they
/// are no longer, so that programs which write to one pipe do not tear each other's.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);  ///< not owned

  void push(std::string_view text) {
    if (error_ == 0) buffer_ += text;
  }
  void write_some();

  int fd() const { return fd_; }
  bool empty() const { return buffer_.empty(); }
  /// Whoever fills the queue should wait until it is not full.
  bool full() const { return buffer_.size() - written_ > kFull; }
  /// The errno value of the write that failed, or 0. From then on everything pushed is dropped.
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
