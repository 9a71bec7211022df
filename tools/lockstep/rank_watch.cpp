// SPDX-License-Identifier: BSD-3-Clause
#include "rank_watch.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "observe/phrases.h"
#include "observe/processes.h"
#include "observe/stack_report.h"
#include "observe/verdict.h"

namespace lockstep::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kShortestPeriod = 50ms;  // between two looks
constexpr auto kLongestPeriod = 500ms;
constexpr auto kSearchPeriod = 5s;         // groups may be formed later
constexpr auto kHurriedSearchPeriod = 1s;  // while ranks are missing
constexpr double kLeastSeconds = 1;        // healthy ranks of a busy host are silent for less
constexpr double kMostSeconds = 7 * 24 * 3600;

bool is_readable(int fd) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) > 0;
}

}  // namespace

std::optional<WatchOptions> watch_options(const RunArguments& arguments,
                                          const launch::LaunchOptions& options) {
  if (!arguments.progress_timeout) return std::nullopt;
  const double seconds = *arguments.progress_timeout;
  if (!(seconds >= kLeastSeconds && seconds <= kMostSeconds)) {
    throw_error<ArgumentError>("--progress-timeout {}: the seconds must be in {} .. {}", seconds,
                               kLeastSeconds, kMostSeconds);
  }
  if (options.nodes)
    throw ArgumentError(
        "--progress-timeout is for one host; leave it out with several nodes and with --hosts");
  return WatchOptions{.progress_timeout = std::chrono::milliseconds(std::llround(seconds * 1000))};
}

RankWatch::RankWatch(const WatchOptions& options, int ranks)
    : options_(options),
      count_(static_cast<std::size_t>(ranks)),
      period_(std::clamp<std::chrono::milliseconds>(options.progress_timeout / 10, kShortestPeriod,
                                                    kLongestPeriod)),
      frozen_(options.progress_timeout) {}

void RankWatch::watch(int stop) {
  pollfd event{.fd = stop, .events = POLLIN, .revents = 0};
  while (true) {
    const int count = ::poll(&event, 1, static_cast<int>(period_.count()));
    if (count > 0 || (count < 0 && errno != EINTR)) return;
    try {
      look();
    } catch (const std::exception& error) {  // as of a process that ends meanwhile
      log(LogLevel::debug, fmt::format("--progress-timeout: the ranks were not read: {}", error.what()));
    }
  }
}

void RankWatch::look() {
  if (must_search()) search();
  if (!ranks_.pids.empty()) end_frozen(ranks_.read(/*with_activity=*/false));
}

bool RankWatch::must_search() const {
  const bool has_changed =
      std::ranges::any_of(processes_, [](const auto& process) { return is_readable(process.second.get()); });
  const auto passed = Clock::now() - searched_at_;
  return has_changed || passed >= (ranks_.progress.size() < count_ ? kHurriedSearchPeriod : kSearchPeriod);
}

void RankWatch::search() {
  ranks_ = observe::joined(observe::find_runs(observe::processes_below(::getpid())));
  searched_at_ = Clock::now();
  std::map<int, UniqueFd> processes;
  for (const int pid : ranks_.pids) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (fd) processes.emplace(pid, std::move(fd));
  }
  processes_ = std::move(processes);
  if (!ranks_.problem.empty() && !is_problem_told_) {
    is_problem_told_ = true;
    log(LogLevel::warning,
        fmt::format("--progress-timeout: ranks are not watched, because {}", ranks_.problem));
  }
}

int RankWatch::visible_pid(const observe::Rank& rank) const {
  for (const auto& each : ranks_.progress)
    if (each.memory->pid == rank.pid && each.memory->thread == rank.thread) return each.pid;
  for (const auto& each : ranks_.publications)
    if (each.status->pid == rank.pid && each.status->thread == rank.thread) return each.pid;
  return 0;
}

std::string RankWatch::stack_of(const observe::Rank& rank) const {
  try {
    auto stack = observe::stacks_text(ranks_, rank.pid);
    while (stack.ends_with('\n')) stack.pop_back();
    return "its stack:\n" + stack;
  } catch (const Error& error) {
    return fmt::format("its stack cannot be shown: {}", error.what());
  }
}

// A rank that makes progress while its stack is read stays alive. A debugger may hold one for as long as it wants.
void RankWatch::end_frozen(const observe::Run& run) {
  const auto bytes_of = [this](const observe::Rank& rank) {
    return observe::transferred_bytes(visible_pid(rank));
  };
  std::map<std::int64_t, std::string> stacks;
  for (const auto& [rank, silent_for] : frozen_.look(run, bytes_of)) {
    if (observe::status_number(visible_pid(*rank), "TracerPid:") == 0)
      stacks.emplace(rank->pid, stack_of(*rank));
  }
  if (stacks.empty()) return;
  const auto now = ranks_.read();
  for (const auto& [rank, silent_for] : frozen_.look(now, bytes_of)) {
    const auto stack = stacks.find(rank->pid);
    if (stack == stacks.end()) continue;
    log(LogLevel::warning,
        fmt::format("{} It has made no progress for {} and is killed (--progress-timeout {:g}); {}",
                    observe::stall_text(now, *rank), observe::seconds_text(silent_for),
                    std::chrono::duration<double>(options_.progress_timeout).count(), stack->second));
    kill(*rank);
  }
}

// Its number may belong to another process by now.
void RankWatch::kill(const observe::Rank& rank) const {
  const int pid = visible_pid(rank);
  const auto process = processes_.find(pid);
  const auto now = observe::own_process(pid);
  if (process == processes_.end() || !now || now->progress.empty()) return;
  ::syscall(SYS_pidfd_send_signal, process->second.get(), SIGKILL, nullptr, 0);
}

}  // namespace lockstep::cli
