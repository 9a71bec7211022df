// SPDX-License-Identifier: BSD-3-Clause
#include "data/progress.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

namespace lockstep::data {
namespace {

constexpr std::chrono::milliseconds kTerminalPause{100};
constexpr std::chrono::milliseconds kLinePause{5'000};
constexpr int kBarWidth = 30;

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

void write_stderr(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) == 1) {
  if (!terminal_) log(LogLevel::info, what_);
  next_ = Clock::now() + (terminal_ ? kTerminalPause : kLinePause);
}

Progress::~Progress() {
  if (bar_shown_) write_stderr("\n");
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  const auto now = Clock::now();
  const bool last_of_bar = bar_shown_ && done == total;
  if (now < next_ && !last_of_bar) return;
  next_ = now + (terminal_ ? kTerminalPause : kLinePause);
  show(done, total);
}

void Progress::show(std::uint64_t done, std::uint64_t total) {
  const double share =
      total == 0 ? 0.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const std::string numbers = total == 0
                                  ? fmt::format("{:.1f} MB", megabytes(done))
                                  : fmt::format("{:3.0f}% of {:.1f} MB", share * 100, megabytes(total));
  if (!terminal_) {
    log(LogLevel::info, fmt::format("{}: {}", what_, numbers));
    return;
  }
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  write_stderr(fmt::format("\r{} [{}{}] {} ", what_, std::string(filled, '='),
                           std::string(kBarWidth - filled, ' '), numbers));
  bar_shown_ = true;
}

}  // namespace lockstep::data
