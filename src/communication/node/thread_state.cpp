// SPDX-License-Identifier: BSD-3-Clause
#include "node/thread_state.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>

namespace lockstep::node {
namespace {

std::string file_of(int pid, const char* name) {
  std::ifstream file(fmt::format("/proc/{}/{}", pid, name));
  std::string text;
  std::getline(file, text);
  return text;
}

// The letter after the program's name, which may itself hold spaces and brackets.
char state_letter(int pid) {
  const auto stat = file_of(pid, "stat");
  const auto bracket = stat.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= stat.size() ? '?' : stat[bracket + 2];
}

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

}  // namespace lockstep::node
