// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>

#include <lockstep/base/unique_fd.h>

namespace lockstep::launch {

/// A TCP connection over which lines go both ways. Nothing here blocks: the owner polls for events() and
/// calls advance().
class LineConnection {
 public:
  /// No message is as long; a stranger's bytes do not fill the memory.
  static constexpr std::size_t kMaxLine = std::size_t{4} * 1024 * 1024;

  LineConnection() = default;
  explicit LineConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Has the kernel declare the connection broken when nothing came from the other host for so long.
  void set_silence_limit(std::chrono::milliseconds limit) const;

  int fd() const { return socket_.get(); }
  short events() const { return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)); }
  /// Writes what can be at once; the rest goes out in advance(). Reads nothing: what is read by the way would
  /// wait for an event that has been already.
  void send(const std::string& line);
  /// Reads and writes what can be at once.
  void advance();
  /// A whole line that came, without its newline.
  std::optional<std::string> take_line();

  /// Why nothing more will come, or empty. Lines that came before may still be taken.
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
