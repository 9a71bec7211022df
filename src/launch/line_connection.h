// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::launch {

// A TCP connection that carries lines in both directions. Nothing blocks: the owner polls for events() and
// calls advance().
class LineConnection {
 public:
  // Longer than any message; bounds the memory that a foreign program can use.
  static constexpr std::size_t kMaxLine = std::size_t{4} * 1024 * 1024;

  LineConnection() = default;
  explicit LineConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  // The kernel reports the connection as broken when the other host is silent for `limit`.
  void set_silence_limit(std::chrono::milliseconds limit) const;

  int fd() const { return socket_.get(); }
  short events() const { return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)); }
  // Writes what is possible now; advance() writes the rest. Does not read: the owner would not be woken for
  // those lines.
  void send(const std::string& line);
  // Reads and writes what is possible now.
  void advance();
  // A received line, without its newline.
  std::optional<std::string> take_line();

  // Why the connection is broken, or empty. Lines received before can still be taken.
  const std::string& broken() const { return broken_; }

 private:
  void read_some();
  void write_some();

  UniqueFd socket_;
  std::string in_;
  std::string out_;
  std::string broken_;
};

}  // namespace lockstep::launch
