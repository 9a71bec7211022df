// SPDX-License-Identifier: BSD-3-Clause
#include "node/liveness.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include "base/unique_fd.h"

namespace lockstep::node {
namespace {

// The kernel's flags of a thread that is in exit() or that a signal has ended.
constexpr std::uint64_t kExiting = 0x4;
constexpr std::uint64_t kSignaled = 0x400;
// Places in /proc/<pid>/stat after the program's name, see proc(5).
constexpr int kFlags = 9;
constexpr int kPending = 31;

std::string start_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const auto length = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

bool is_thread_exiting(const std::string& stat) {
  // The name may itself hold spaces and brackets.
  const auto bracket = stat.rfind(')');
  if (bracket == std::string::npos || bracket + 4 >= stat.size()) return false;
  std::istringstream fields(stat.substr(bracket + 4));
  std::uint64_t flags = 0;
  std::uint64_t pending = 0;
  std::string field;
  for (int place = 4; place <= kPending && fields >> field; ++place) {
    if (place == kFlags) flags = std::strtoull(field.c_str(), nullptr, 10);
    if (place == kPending) pending = std::strtoull(field.c_str(), nullptr, 10);
  }
  return (flags & (kExiting | kSignaled)) != 0 || (pending >> (SIGKILL - 1U) & 1U) != 0;
}

int process_of_pidfd(int pidfd) {
  const auto info = start_of(fmt::format("/proc/self/fdinfo/{}", pidfd));
  const auto line = info.find("\nPid:");
  return line == std::string::npos ? 0 : std::max(0, std::atoi(info.c_str() + line + 5));
}

bool is_exiting(int pid) {
  // The main thread comes first, because it decides for a live process.
  if (!is_thread_exiting(start_of(fmt::format("/proc/{}/stat", pid)))) return false;
  std::error_code gone;
  std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", pid), gone);
  for (; !gone && threads != std::filesystem::directory_iterator(); threads.increment(gone)) {
    const auto stat = start_of(threads->path() / "stat");
    // The thread may have ended meanwhile.
    if (!stat.empty() && !is_thread_exiting(stat)) return false;
  }
  return true;
}

}  // namespace lockstep::node
