// SPDX-License-Identifier: BSD-3-Clause
#include "launch/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <limits.h>
#include <unistd.h>

namespace lockstep::launch {

void OutputQueue::write_some() {
  const std::size_t size = std::min<std::size_t>(PIPE_BUF, buffer_.size() - written_);
  const ssize_t count = ::write(fd_, buffer_.data() + written_, size);
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    error_ = errno;
    buffer_.clear();
    written_ = 0;
    return;
  }
  written_ += static_cast<std::size_t>(count);
  // Moving what is left costs little when it is done once in many writes.
  if (written_ == buffer_.size() || written_ > kFull) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace lockstep::launch
