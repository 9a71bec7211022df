// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace lockstep::training {

// Columns of the terminal behind `fd`, as of now; nullopt when it is not a terminal that can move its cursor.
std::optional<int> terminal_width(int fd);

// Writes a text of whole lines with one write(2), above the TerminalLines of its terminal. Errors are
// ignored. Thread-safe, as everything here.
void write_line(int fd, std::string_view text);

// One of the lines at the bottom of a terminal, below those that were made before it. While one exists, lines
// of log() are written above it.
class TerminalLine {
 public:
  // REQUIRES a terminal.
  explicit TerminalLine(int fd);
  // Removes the line.
  ~TerminalLine();
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  // `text` is at most as wide as the terminal.
  void show(std::string text);
  // Removes the line and leaves `text` above the other ones.
  void leave(std::string_view text);

  const std::string& text() const { return text_; }

 private:
  int fd_;
  dev_t terminal_;
  std::string text_;
};

}  // namespace lockstep::training
