// SPDX-License-Identifier: BSD-3-Clause
#include "launch/process_tree.h"

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <signal.h>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace lockstep::launch {
namespace {

struct ProcessStat {
  pid_t parent = 0;
  char state = '?';
  pid_t session = 0;
  unsigned long long start_time = 0;  // identifies the process, together with the pid
};

// /proc/<pid>/stat: "pid (name) state ppid pgrp session ...", start time in field 22. The name may hold spaces and
// brackets.
std::optional<ProcessStat> read_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text, '\0')) return std::nullopt;
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  pid_t group = 0;
  fields >> stat.state >> stat.parent >> group >> stat.session;
  std::string skipped;
  for (int field = 7; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time;
  return fields ? std::optional(stat) : std::nullopt;
}

std::map<pid_t, ProcessStat> all_processes() {
  std::map<pid_t, ProcessStat> processes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    if (const auto stat = read_stat(pid)) processes.emplace(pid, *stat);
  }
  return processes;
}

// The snapshot is not atomic, so a chain of parents could be circular.
constexpr int kDeepest = 1000;

bool descends_from(pid_t pid, pid_t ancestor, const std::map<pid_t, ProcessStat>& processes) {
  for (int depth = 0; depth < kDeepest; ++depth) {
    const auto found = processes.find(pid);
    if (found == processes.end()) return false;
    pid = found->second.parent;
    if (pid == ancestor) return true;
  }
  return false;
}

// Whether the process, or one above it, is in that session.
bool belongs_to(pid_t leader, pid_t pid, const std::map<pid_t, ProcessStat>& processes) {
  for (int depth = 0; depth < kDeepest; ++depth) {
    const auto found = processes.find(pid);
    if (found == processes.end()) return false;
    if (found->second.session == leader) return true;
    pid = found->second.parent;
  }
  return false;
}

std::map<pid_t, ProcessStat> living_descendants() {
  const auto processes = all_processes();
  std::map<pid_t, ProcessStat> found;
  for (const auto& [pid, stat] : processes) {
    if (stat.state != 'Z' && descends_from(pid, ::getpid(), processes)) found.emplace(pid, stat);
  }
  return found;
}

// The pid may have been reused: open a descriptor, then compare the start times.
void signal_process(pid_t pid, const ProcessStat& seen, int signal) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return;
  const auto now = read_stat(pid);
  if (!now || now->start_time != seen.start_time) return;
  ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
}

// False once this process has no children.
bool reap_zombies() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) return errno != ECHILD;
    if (info.si_pid == 0) return true;
  }
}

}  // namespace

ChildSubreaper::ChildSubreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
ChildSubreaper::~ChildSubreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

std::vector<pid_t> descendants() {
  std::vector<pid_t> pids;
  for (const auto& [pid, stat] : living_descendants()) pids.push_back(pid);
  return pids;
}

void signal_descendants(int signal) {
  for (const auto& [pid, stat] : living_descendants()) signal_process(pid, stat, signal);
}

bool kill_session(pid_t leader, const Deadline& deadline) {
  for (;;) {
    auto members = living_descendants();
    const auto all = members;
    std::erase_if(members, [&](const auto& process) { return !belongs_to(leader, process.first, all); });
    if (members.empty()) return true;
    if (deadline.expired()) return false;
    for (const auto& [pid, stat] : members) signal_process(pid, stat, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool kill_descendants(const Deadline& deadline) {
  while (reap_zombies()) {
    if (deadline.expired()) return false;
    signal_descendants(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

namespace {

constexpr pid_t kAnyChild = -1;

// Whether a child, which is not reaped yet, had reached the limit of CPU time, which it inherits from this process.
// The kernel counts the time of the child itself, to which wait4() would add the time of the processes that the
// child has reaped. It compares whole seconds.
bool reached_cpu_limit(pid_t child) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return false;
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(child, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return false;
  constexpr double rounding = 0.5;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9 + rounding >=
         static_cast<double>(limit.rlim_max);
}

// 0, EAGAIN when none has ended, or ECHILD when there is none.
int take(pid_t child, std::vector<RankExit>& exits) {
  siginfo_t info{};
  const auto which = child == kAnyChild ? P_ALL : P_PID;
  if (::waitid(which, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return errno;
  const pid_t pid = info.si_pid;
  if (pid == 0) return EAGAIN;
  const bool at_cpu_limit = info.si_code == CLD_KILLED && info.si_status == SIGKILL && reached_cpu_limit(pid);
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) return errno;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  exits.push_back({.pid = pid,
                   .code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                   .signal = signal,
                   .core_dumped = signal != 0 && WCOREDUMP(status),
                   .cpu_limit = at_cpu_limit});
  return 0;
}

}  // namespace

EndedChildren reap_ended_children(pid_t first) {
  EndedChildren ended;
  take(first, ended.exits);
  const auto known = static_cast<std::ptrdiff_t>(ended.exits.size());
  int outcome = 0;
  while (outcome == 0) outcome = take(kAnyChild, ended.exits);
  ended.any_left = outcome != ECHILD;
  // Children that ended at nearly the same time have no useful order: a crash is more likely the cause than
  // an exit.
  std::stable_partition(ended.exits.begin() + known, ended.exits.end(),
                        [](const auto& exit) { return exit.signal != 0; });
  return ended;
}

}  // namespace lockstep::launch
