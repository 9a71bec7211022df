// SPDX-License-Identifier: BSD-3-Clause
#include "base/liveness.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "base/host.h"
#include "base/unique_fd.h"

namespace lockstep {
namespace {

// The kernel's flags of a thread that is in exit() or that a signal has ended.
constexpr std::uint64_t kExiting = 0x4;
constexpr std::uint64_t kSignaled = 0x400;
// Places in /proc/<pid>/stat after the program's name, see proc(5).
constexpr int kFlags = 9;
constexpr int kStart = 22;
constexpr int kPending = 31;

std::string start_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const auto length = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string();
}

// [place]: the number there, 0 before the fourth. Empty for a text that is no line of stat.
std::vector<std::uint64_t> numbers_of(const std::string& stat) {
  // The name may itself hold spaces and brackets.
  const auto bracket = stat.rfind(')');
  if (bracket == std::string::npos || bracket + 4 >= stat.size()) return {};
  std::istringstream fields(stat.substr(bracket + 4));
  std::vector<std::uint64_t> numbers(4);
  for (std::string field; numbers.size() <= kPending && fields >> field;)
    numbers.push_back(std::strtoull(field.c_str(), nullptr, 10));
  numbers.resize(kPending + 1);
  return numbers;
}

std::string stat_of(const std::string& process) { return start_of(fmt::format("/proc/{}/stat", process)); }

// 0 if the process does not exist.
std::uint64_t start_time_of(const std::string& process) {
  const auto numbers = numbers_of(stat_of(process));
  return numbers.empty() ? 0 : numbers[kStart];
}

std::string own_space() {
  struct stat space {};
  const auto boot = first_line("/proc/sys/kernel/random/boot_id");
  if (boot.empty() || ::stat("/proc/self/ns/pid", &space) != 0) return {};
  return fmt::format("{}-{}", boot, space.st_ino);
}

std::string file_of(int pid, const char* name) { return first_line(fmt::format("/proc/{}/{}", pid, name)); }

// The user-space address that a sleeping thread will return to: the last word of /proc/<pid>/syscall.
std::optional<std::uint64_t> return_address(int pid) {
  std::istringstream words(file_of(pid, "syscall"));
  std::string word;
  std::string last;
  while (words >> word) last = word;
  if (!last.starts_with("0x")) return std::nullopt;
  return std::stoull(last, nullptr, 16);
}

// "libc.so.6+0x8ce4d"
std::string place_of(int pid, std::uint64_t address) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  std::string line;
  while (std::getline(maps, line)) {
    std::istringstream fields(line);
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;
    char dash = 0;
    std::string rights;
    std::string device;
    std::string inode;
    std::string path;
    fields >> std::hex >> begin >> dash >> end >> rights >> offset >> device >> inode >> path;
    if (address < begin || address >= end || path.empty()) continue;
    return fmt::format("{}+{:#x}", path.substr(path.rfind('/') + 1), address - begin + offset);
  }
  return {};
}

}  // namespace

bool is_thread_exiting(const std::string& stat) {
  const auto numbers = numbers_of(stat);
  if (numbers.empty()) return false;
  return (numbers[kFlags] & (kExiting | kSignaled)) != 0 || (numbers[kPending] >> (SIGKILL - 1U) & 1U) != 0;
}

int process_of_pidfd(int pidfd) {
  const auto info = start_of(fmt::format("/proc/self/fdinfo/{}", pidfd));
  const auto line = info.find("\nPid:");
  return line == std::string::npos ? 0 : std::max(0, std::atoi(info.c_str() + line + 5));
}

bool is_exiting(int pid) {
  // The main thread comes first, because it decides for a live process.
  if (!is_thread_exiting(stat_of(std::to_string(pid)))) return false;
  std::error_code gone;
  std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", pid), gone);
  for (; !gone && threads != std::filesystem::directory_iterator(); threads.increment(gone)) {
    const auto stat = start_of(threads->path() / "stat");
    // The thread may have ended meanwhile.
    if (!stat.empty() && !is_thread_exiting(stat)) return false;
  }
  return true;
}

// The letter after the program's name, which may itself hold spaces and brackets.
char state_letter(int tid) {
  const auto stat = file_of(tid, "stat");
  const auto bracket = stat.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= stat.size() ? '?' : stat[bracket + 2];
}

ProcessIdentity ProcessIdentity::own() {
  ProcessIdentity own{.space = own_space(), .pid = ::getpid(), .start = start_time_of("self")};
  // A /proc of another namespace shows other processes under these numbers.
  if (own.start != start_time_of(std::to_string(own.pid))) own.space.clear();
  return own;
}

bool has_ended(const ProcessIdentity& process) {
  static const auto visible = ProcessIdentity::own().space;
  if (process.space.empty() || process.space != visible) return false;
  if (::kill(process.pid, 0) != 0 && errno == ESRCH) return true;
  const auto start = start_time_of(std::to_string(process.pid));
  return (start != 0 && start != process.start) || is_exiting(process.pid);
}

std::string describe_thread(int tid) {
  switch (state_letter(tid)) {
    case 'R':
      return "its thread is running";
    case 'T':
    case 't':
      return "it has been stopped by a signal or a debugger";
    case 'Z':
    case 'X':
      return "it is dead";
    case '?':
      return "its state cannot be seen from here";
    default:
      break;
  }
  std::string text = "its thread sleeps";
  if (const auto kernel = file_of(tid, "wchan"); !kernel.empty() && kernel != "0") text += " in " + kernel;
  if (const auto address = return_address(tid)) {
    if (const auto place = place_of(tid, *address); !place.empty()) text += ", called from " + place;
  }
  return text;
}

}  // namespace lockstep
