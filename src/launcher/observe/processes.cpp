// SPDX-License-Identifier: BSD-3-Clause
#include "observe/processes.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <pwd.h>
#include <sstream>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/liveness.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "observe/status_layout.h"

namespace lockstep::observe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "/memfd:lockstep";
const std::string kGroupMark = std::string("/memfd:") + kMemoryPrefix;
const std::string kProgressMark = std::string("/memfd:") + kProgressName;
constexpr std::string_view kDeleted = " (deleted)";

std::string folder_of(int pid) { return fmt::format("/proc/{}", pid); }

// The numbers of /proc, or of a folder below.
std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  std::error_code gone;
  fs::directory_iterator entries(folder, gone);
  for (; !gone && entries != fs::directory_iterator(); entries.increment(gone)) {
    if (const auto number = parse_number<int>(entries->path().filename().string()))
      numbers.push_back(*number);
  }
  return numbers;
}

// The strings of a file in which each ends with a null byte.
std::vector<std::string> strings_in(const std::string& path) {
  std::vector<std::string> strings;
  std::ifstream file(path);
  for (std::string entry; std::getline(file, entry, '\0');) strings.push_back(entry);
  return strings;
}

std::optional<uid_t> owner_of(int pid) {
  struct stat status {};
  return ::stat(folder_of(pid).c_str(), &status) == 0 ? std::optional(status.st_uid) : std::nullopt;
}

// A line of /proc/PID/maps that shows the start of such memory.
std::optional<MappedMemory> memory_in(const std::string& line) {
  const auto mark = line.find(kMark);
  if (mark == std::string::npos || !line.ends_with(kDeleted)) return std::nullopt;
  std::istringstream fields(line);
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;
  unsigned major = 0;
  unsigned minor = 0;
  ino_t inode = 0;
  char dash = 0;
  std::string rights;
  fields >> std::hex >> begin >> dash >> end >> rights >> offset >> major >> dash >> minor >> std::dec >>
      inode;
  if (!fields || offset != 0) return std::nullopt;
  return MappedMemory{.file = {makedev(major, minor), inode},
                      .name = line.substr(mark, line.size() - kDeleted.size() - mark),
                      .address = begin};
}

void find_memory(Process& process) {
  std::ifstream maps(folder_of(process.pid) + "/maps");
  std::string line;
  while (std::getline(maps, line)) {
    auto mapped = memory_in(line);
    if (!mapped) continue;
    if (mapped->name == kProgressMark) {
      process.progress.push_back(std::move(*mapped));
    } else if (mapped->name.starts_with(kGroupMark)) {
      mapped->name.erase(0, kGroupMark.size());
      process.memory.push_back(std::move(*mapped));
    }
  }
}

// The number in the first bytes of a file, behind `key`.
std::int64_t number_behind(const std::string& path, const char* key) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  if (!file || ::read(file.get(), text.data(), text.size() - 1) <= 0) return 0;
  const auto* const found = std::strstr(text.data(), key);
  return found == nullptr ? 0 : std::strtoll(found + std::strlen(key), nullptr, 10);
}

// The name of the program may hold spaces and brackets.
std::int64_t page_faults_with_input(int pid) {
  std::ifstream file(folder_of(pid) + "/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  constexpr int kPlace = 10;  // behind the name
  std::string field;
  for (int i = 0; i < kPlace && fields >> field; ++i) {
  }
  return fields ? parse_number<std::int64_t>(field).value_or(0) : 0;
}

std::string user_name(uid_t user) {
  const auto* const entry = ::getpwuid(user);
  return entry != nullptr ? entry->pw_name : std::to_string(user);
}

}  // namespace

std::vector<Process> own_processes() {
  std::vector<Process> processes;
  for (const int pid : numbers_in("/proc")) {
    if (auto process = own_process(pid)) processes.push_back(std::move(*process));
  }
  return processes;
}

std::optional<Process> own_process(int pid) {
  if (owner_of(pid) != ::geteuid()) return std::nullopt;
  Process process{
      .pid = pid, .inner_pid = status_number(pid, "NSpid:"), .parent = status_number(pid, "PPid:")};
  find_memory(process);
  return process;
}

std::vector<Process> processes_below(int ancestor) {
  const auto children_of = [](int pid) {
    std::vector<int> children;
    for (const int thread : threads_of(pid)) {
      std::ifstream file(fmt::format("{}/task/{}/children", folder_of(pid), thread));
      for (int child = 0; file >> child;) children.push_back(child);
    }
    return children;
  };
  std::vector<Process> below;
  if (!fs::exists(fmt::format("/proc/self/task/{}/children", ::gettid()))) {  // a kernel without this file
    const auto all = own_processes();
    std::ranges::copy_if(all, std::back_inserter(below), [&](const Process& process) {
      return process.pid != ancestor && descends_from(all, process.pid, ancestor);
    });
    return below;
  }
  auto pids = children_of(ancestor);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (auto process = own_process(pids[i])) below.push_back(std::move(*process));
    for (const int child : children_of(pids[i])) pids.push_back(child);
  }
  return below;
}

std::vector<Process> outer_ranks(const std::vector<Process>& processes) {
  const auto is_rank = [](const Process& process) {
    return !process.memory.empty() || !process.progress.empty();
  };
  std::vector<Process> outer;
  std::ranges::copy_if(processes, std::back_inserter(outer), [&](const Process& process) {
    return is_rank(process) && std::ranges::none_of(processes, [&](const Process& above) {
             return above.pid != process.pid && is_rank(above) &&
                    descends_from(processes, process.pid, above.pid);
           });
  });
  return outer;
}

std::vector<int> threads_of(int pid) { return numbers_in(folder_of(pid) + "/task"); }

int status_number(int pid, const std::string& key) {
  std::ifstream status(folder_of(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(key))
      return parse_number<int>(line.substr(line.find_last_of(" \t") + 1)).value_or(0);
  }
  return 0;
}

std::int64_t resident_bytes_of(int pid) {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  return number_behind(folder_of(pid) + "/statm", " ") * page;
}

std::int64_t proportional_bytes(int pid) {
  return number_behind(folder_of(pid) + "/smaps_rollup", "\nPss:") * 1024;
}

std::uint64_t transferred_bytes(int pid) {
  const auto file = folder_of(pid) + "/io";
  std::int64_t bytes = page_faults_with_input(pid) * ::sysconf(_SC_PAGESIZE);
  for (const auto* const key : {"rchar:", "wchar:", "\nread_bytes:", "\nwrite_bytes:"})
    bytes += number_behind(file, key);
  return static_cast<std::uint64_t>(bytes);
}

bool is_in_kernel_wait(int pid) {
  return std::ranges::any_of(threads_of(pid), [](int thread) { return state_letter(thread) == 'D'; });
}

bool descends_from(const std::vector<Process>& processes, int pid, int ancestor) {
  std::map<int, int> parents;
  for (const auto& process : processes) parents[process.pid] = process.parent;
  for (std::size_t depth = 0; depth <= parents.size(); ++depth) {
    if (pid == ancestor) return true;
    const auto parent = parents.find(pid);
    if (parent == parents.end()) return false;
    pid = parent->second;
  }
  return false;
}

std::optional<std::string> open_file_of(int pid, const MappedMemory& memory) {
  const auto folder = folder_of(pid) + "/fd";
  for (const int fd : numbers_in(folder)) {
    const auto path = fmt::format("{}/{}", folder, fd);
    std::error_code gone;
    if (!fs::read_symlink(path, gone).string().starts_with(kMark) || gone) continue;
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && memory.file == std::pair{status.st_dev, status.st_ino})
      return path;
  }
  return std::nullopt;
}

std::vector<std::string> variables_of(int pid) { return strings_in(folder_of(pid) + "/environ"); }

std::vector<std::string> command_of(int pid) { return strings_in(folder_of(pid) + "/cmdline"); }

std::string variable_of(int pid, const std::string& name) {
  for (const auto& variable : variables_of(pid)) {
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  }
  return {};
}

std::string reason_not_to_look(int pid) {
  const auto owner = owner_of(pid);
  if (!owner) return fmt::format("there is no process {} on this host", pid);
  if (*owner != ::geteuid()) {
    return fmt::format(
        "process {} belongs to {}, and only a process's own user may look into it: run this as {}", pid,
        user_name(*owner), user_name(*owner));
  }
  if (::access((folder_of(pid) + "/maps").c_str(), R_OK) != 0 ||
      std::ifstream(folder_of(pid) + "/maps").peek() < 0) {
    return fmt::format(
        "the system does not let this user look into process {}: a program with more rights, or a "
        "container without CAP_SYS_PTRACE; look from inside the container",
        pid);
  }
  return {};
}

}  // namespace lockstep::observe
