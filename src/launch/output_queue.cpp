// SPDX-License-Identifier: BSD-3-Clause
#include "launch/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::launch {

namespace {

// A stopped terminal (Ctrl-S, a dead connection) polls as writable, but blocks. Empty for files, and for
// terminals of other users, which cannot be opened.
UniqueFd opened_for_this_process(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || !(S_ISFIFO(file.st_mode) || ::isatty(fd) == 1)) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

OutputQueue::OutputQueue(int fd) : own_(opened_for_this_process(fd)), fd_(own_ ? own_.get() : fd) {}

std::size_t OutputQueue::next_piece() const {
  const std::size_t most = std::min<std::size_t>(PIPE_BUF, buffer_.size() - written_);
  const auto end = std::string_view(buffer_).substr(written_, most).rfind('\n');
  return end == std::string_view::npos ? most : end + 1;
}

void OutputQueue::write_some() {
  const std::size_t size = next_piece();
  const ssize_t count = ::write(fd_, buffer_.data() + written_, size);
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    error_ = errno;
    buffer_.clear();
    written_ = 0;
    return;
  }
  written_ += static_cast<std::size_t>(count);
  // Moving the rest is cheap when it happens once in many writes.
  if (written_ == buffer_.size() || written_ > kFull) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace lockstep::launch
