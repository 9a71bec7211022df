// SPDX-License-Identifier: BSD-3-Clause
#include "training/terminal.h"

#include <cerrno>
#include <map>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/mutex.h>

#include "base/env.h"
#include "base/process_state.h"

namespace lockstep::training {
namespace {

struct Screen {
  std::vector<const TerminalLine*> lines;
  std::size_t drawn = 0;  // lines; the cursor is at the end of the last one
};

// Several descriptors can be one terminal: stdout and stderr usually are.
struct Screens {
  Mutex mutex;
  std::map<dev_t, Screen> by_terminal LOCKSTEP_GUARDED_BY(mutex);
};

Screens& screens() {
  static auto& all = *new Screens;  // log() may be called after the destructors of statics
  return all;
}

dev_t terminal_of(int fd) {
  struct stat status {};
  return ::isatty(fd) == 1 && ::fstat(fd, &status) == 0 ? status.st_rdev : 0;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// One write, so that neither threads nor other processes see or tear a half-drawn screen.
void redraw(Screen& screen, int fd, std::string_view above) {
  std::string output;
  if (screen.drawn > 0) output = "\r";
  if (screen.drawn > 1) output += fmt::format("\x1b[{}A", screen.drawn - 1);
  if (screen.drawn > 0) output += "\x1b[J";
  output += above;
  screen.drawn = 0;
  for (const auto* line : screen.lines) {
    if (line->text().empty()) continue;
    if (screen.drawn++ > 0) output += '\n';
    output += line->text();
  }
  write_all(fd, output);
}

void log_above(std::string_view line) { write_line(STDERR_FILENO, line); }

}  // namespace

std::optional<int> terminal_width(int fd) {
  if (::isatty(fd) != 1 || Env().get("TERM").value_or("dumb") == "dumb") return std::nullopt;
  constexpr int usual = 80;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual;
}

void write_line(int fd, std::string_view text) {
  const MutexLock lock(screens().mutex);
  const auto screen = screens().by_terminal.find(terminal_of(fd));
  if (screen == screens().by_terminal.end()) return write_all(fd, text);
  redraw(screen->second, fd, text);
}

TerminalLine::TerminalLine(int fd) : fd_(fd), terminal_(terminal_of(fd)) {
  const MutexLock lock(screens().mutex);
  screens().by_terminal[terminal_].lines.push_back(this);
  set_log_writer(log_above);
}

TerminalLine::~TerminalLine() { leave(""); }

void TerminalLine::show(std::string text) {
  const MutexLock lock(screens().mutex);
  text_ = std::move(text);
  redraw(screens().by_terminal[terminal_], fd_, "");
}

void TerminalLine::leave(std::string_view text) {
  const MutexLock lock(screens().mutex);
  auto& screen = screens().by_terminal[terminal_];
  if (std::erase(screen.lines, this) > 0) redraw(screen, fd_, text);
  if (screen.lines.empty()) screens().by_terminal.erase(terminal_);
  if (screens().by_terminal.empty()) set_log_writer(nullptr);
}

}  // namespace lockstep::training
