// SPDX-License-Identifier: BSD-3-Clause
#include "progress.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "base/limits.h"

namespace lockstep::ckpt {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::string_view kStartOfLine = "\r\x1b[K";

std::uint64_t size_of(const fs::path& file) {
  std::error_code code;
  const auto size = fs::file_size(file, code);
  return code ? 0 : size;
}

// As the kernel counts them for this process: "rchar" (read) or "wchar" (written).
std::uint64_t transferred(std::string_view counter) {
  std::ifstream counters("/proc/self/io");
  std::string name;
  for (std::uint64_t count = 0; counters >> name >> count;)
    if (name.starts_with(counter)) return count;
  return 0;
}

std::uint64_t bytes_at(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) return size_of(path);
  std::uint64_t bytes = 0;
  for (auto entry = fs::directory_iterator(path, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    bytes += size_of(entry->path());
  }
  return bytes;
}

}  // namespace

Progress::Progress(std::string what, std::uint64_t total, std::function<std::uint64_t()> done)
    : what_(std::move(what)),
      total_(total),
      done_(std::move(done)),
      terminal_(::isatty(STDERR_FILENO) != 0),
      thread_(start_thread<std::thread>("the progress", [this] { show_until_over(); })) {}

Progress::~Progress() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  over_changed_.notify_one();
  thread_.join();
  if (shown_ && terminal_) std::cerr << kStartOfLine << std::flush;
}

void Progress::show_until_over() {
  auto wait = terminal_ ? std::chrono::milliseconds(500) : 5s;
  const MutexLock lock(mutex_);
  while (!over_changed_.wait_for(mutex_, wait, [this]() LOCKSTEP_REQUIRES(mutex_) { return over_; })) {
    show();
    if (terminal_) wait = 100ms;
  }
}

void Progress::show() {
  const auto text = progress_text(what_, done_(), total_);
  if (terminal_) {
    std::cerr << kStartOfLine << text << std::flush;
  } else {
    std::cerr << text + "\n" << std::flush;
  }
  shown_ = true;
}

std::string progress_text(const std::string& what, std::uint64_t done, std::uint64_t total) {
  if (total == 0) return fmt::format("{}: {}", what, bytes_text(done));
  const auto shown = std::min(done, total);
  return fmt::format("{}: {} of {}, {:.0f}%", what, bytes_text(shown), bytes_text(total),
                     100.0 * static_cast<double>(shown) / static_cast<double>(total));
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> units = {"B", "kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; number >= 999.95 && unit + 1 < units.size(); ++unit) number /= 1000;
  return fmt::format("{:.1f} {}", number, units[unit]);
}

std::unique_ptr<Progress> writing_progress(const fs::path& path, std::uint64_t total) {
  return std::make_unique<Progress>(fmt::format("writing {}", path.string()), total,
                                    [start = transferred("wchar")] { return transferred("wchar") - start; });
}

std::unique_ptr<Progress> reading_progress(const fs::path& path) {
  return std::make_unique<Progress>(fmt::format("reading {}", path.string()), bytes_at(path),
                                    [start = transferred("rchar")] { return transferred("rchar") - start; });
}

}  // namespace lockstep::ckpt
