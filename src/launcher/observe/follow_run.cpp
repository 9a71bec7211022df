// SPDX-License-Identifier: BSD-3-Clause
#include "observe/follow_run.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "observe/processes.h"

namespace lockstep::observe {
namespace {

constexpr std::chrono::seconds kShortestPeriod{1};
constexpr std::chrono::seconds kLongestPeriod{64};
constexpr std::chrono::seconds kProportionalPeriod{2};
constexpr int kProportionalCost = 2000;  // the time between two readings is so many times that of a reading

std::chrono::nanoseconds own_processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// The launcher of a rank, above scripts that it has started; 0 for a process without one.
int launcher_of(int pid) {
  const auto is_launched = [](int process) {
    return !variable_of(process, "TORCHELASTIC_RESTART_COUNT").empty();
  };
  if (!is_launched(pid)) return 0;
  do pid = status_number(pid, "PPid:");
  while (pid > 1 && is_launched(pid));
  return pid;
}

bool share_a_process(const std::vector<int>& one, const std::vector<int>& other) {
  return std::ranges::any_of(one, [&](int pid) { return std::ranges::find(other, pid) != other.end(); });
}

}  // namespace

FollowedRun::Watched::Watched(int process)
    : pid(process), fd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))) {}

bool FollowedRun::Watched::has_ended() const {
  if (!fd) return ::kill(pid, 0) != 0 && errno == ESRCH;
  pollfd event{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) > 0;
}

FollowedRun::FollowedRun(const std::string& name) { follow(find_run(name)); }

void FollowedRun::follow(ObservedRun run) {
  const bool is_new = processes_.empty() || run.pids != observed_.pids ||
                      run.publications.size() != observed_.publications.size();
  searched_ = Clock::now();
  period_ = is_new ? kShortestPeriod : std::min<Clock::duration>(4 * period_, kLongestPeriod);
  observed_ = std::move(run);
  processes_.clear();
  for (const int pid : observed_.pids) processes_.emplace_back(pid);
  const int launcher = launcher_of(observed_.pids.front());
  if (launcher != 0 && (!launcher_ || launcher_->pid != launcher)) launcher_.emplace(launcher);
}

bool FollowedRun::mark_ended() {
  const auto mark = [](auto& published, int pid) {
    for (auto& each : published) {
      if (each.pid == pid) each.pid = each.thread = 0;
    }
  };
  return std::erase_if(processes_, [&](const Watched& process) {
           if (!process.has_ended()) return false;
           mark(observed_.publications, process.pid);
           mark(observed_.progress, process.pid);
           return true;
         }) > 0;
}

// The run of a process that still runs or, if there is none, the one that the launcher has started since.
std::optional<ObservedRun> FollowedRun::find_again() const {
  std::vector<int> running;
  for (const auto& process : processes_) running.push_back(process.pid);
  const auto all = own_processes();
  auto runs = find_runs(all);
  for (auto& run : runs) {
    const bool is_same = running.empty() ? launcher_ && descends_from(all, run.pids.front(), launcher_->pid)
                                         : share_a_process(run.pids, running);
    if (is_same && run.problem.empty()) return std::move(run);
  }
  return std::nullopt;
}

void FollowedRun::search() {
  if (auto found = find_again()) {
    follow(std::move(*found));
  } else {
    searched_ = Clock::now();
    period_ = kShortestPeriod;
  }
}

std::optional<Run> FollowedRun::read() {
  const bool has_changed = mark_ended();
  const bool is_over = processes_.empty() && (!launcher_ || launcher_->has_ended());
  if (is_over) return std::nullopt;
  if (has_changed) period_ = kShortestPeriod;
  if (Clock::now() - searched_ >= period_) search();
  return observed_.read(/*with_activity=*/false);
}

void FollowedRun::read_proportional(Clock::time_point now) {
  const auto begin = own_processor_time();
  proportional_.clear();
  for (const auto& process : processes_) proportional_[process.pid] = proportional_bytes(process.pid);
  const auto cost = own_processor_time() - begin;
  proportional_due_ = now + std::max<std::chrono::nanoseconds>(kProportionalPeriod, kProportionalCost * cost);
}

std::map<std::int64_t, MemoryUse> FollowedRun::memory() {
  if (const auto now = Clock::now(); now >= proportional_due_) read_proportional(now);
  std::map<std::int64_t, MemoryUse> memory;
  const auto add = [&](int pid, std::int64_t own_pid) {
    if (pid == 0 || memory.contains(own_pid)) return;
    const auto proportional = proportional_.find(pid);
    memory[own_pid] = {.resident = resident_bytes_of(pid),
                       .proportional = proportional == proportional_.end() ? 0 : proportional->second};
  };
  for (const auto& each : observed_.publications) add(each.pid, each.status->pid);
  for (const auto& each : observed_.progress) add(each.pid, each.memory->pid);
  return memory;
}

}  // namespace lockstep::observe
