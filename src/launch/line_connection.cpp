// SPDX-License-Identifier: BSD-3-Clause
#include "launch/line_connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

namespace lockstep::launch {
namespace {

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

bool must_wait(int code) { return code == EAGAIN || code == EWOULDBLOCK || code == EINTR; }

}  // namespace

void LineConnection::set_silence_limit(std::chrono::milliseconds limit) const {
  constexpr int kProbes = 3;
  const int seconds = std::max(1, static_cast<int>(limit.count()) / 1000 / kProbes);
  set_option(fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPCNT, kProbes - 1);
  set_option(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
  set_option(fd(), IPPROTO_TCP, TCP_NODELAY, 1);
}

void LineConnection::send(const std::string& line) {
  out_ += line + "\n";
  if (socket_ && broken_.empty()) write_some();
}

void LineConnection::advance() {
  if (broken_.empty()) write_some();
  if (broken_.empty()) read_some();
}

std::optional<std::string> LineConnection::take_line() {
  const auto end = in_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = in_.substr(0, end);
  in_.erase(0, end + 1);
  return line;
}

void LineConnection::read_some() {
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t count = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      in_.append(buffer.data(), static_cast<std::size_t>(count));
      if (in_.size() > kMaxLine) broken_ = "it sent a line that is too long for a launcher";
      if (!broken_.empty()) return;
      continue;
    }
    if (count == 0) {
      broken_ = "its connection closed";
    } else if (!must_wait(errno)) {
      broken_ = errno_text(errno);
    }
    return;
  }
}

void LineConnection::write_some() {
  while (!out_.empty()) {
    const ssize_t count = ::send(fd(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
      if (!must_wait(errno)) broken_ = errno_text(errno);
      return;
    }
    out_.erase(0, static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::launch
