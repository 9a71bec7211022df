// SPDX-License-Identifier: BSD-3-Clause
#include "rank_watch.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "observe/phrases.h"
#include "observe/processes.h"
#include "observe/stack_report.h"
#include "observe/step_faults.h"
#include "observe/verdict.h"

namespace lockstep::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kShortestPeriod = 50ms;  // between two looks
constexpr auto kLongestPeriod = 500ms;
constexpr auto kSearchPeriod = 5s;         // groups may be formed later
constexpr auto kHurriedSearchPeriod = 1s;  // while ranks are missing
constexpr double kShortestTimeout = 1;     // healthy ranks of a busy host are silent for less
constexpr double kLongestTimeout = 7 * 24 * 3600;
constexpr double kLargestFactor = 1000;
constexpr int kLeastSteps = 3;

bool is_readable(int fd) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) > 0;
}

std::optional<std::chrono::milliseconds> checked_timeout(const RunArguments& arguments) {
  if (!arguments.progress_timeout) return std::nullopt;
  const double seconds = *arguments.progress_timeout;
  if (seconds >= kShortestTimeout && seconds <= kLongestTimeout)
    return std::chrono::milliseconds(std::llround(seconds * 1000));
  throw_error<ArgumentError>("--progress-timeout {}: the seconds must be in {} .. {}", seconds,
                             kShortestTimeout, kLongestTimeout);
}

std::optional<SlowRanks> slow_ranks(const RunArguments& arguments, const launch::LaunchOptions& options) {
  const bool are_replaced = arguments.on_slow == "replace";
  if (!are_replaced && arguments.on_slow != "report")
    throw_error<ArgumentError>("--on-slow {}: use report, replace", arguments.on_slow);
  if (!arguments.slow_factor) {
    const bool has_steps = arguments.slow_steps != RunArguments{}.slow_steps;
    if (are_replaced || has_steps) {
      throw_error<ArgumentError>("{} has no effect without --slow-factor; add it, as in --slow-factor 2",
                                 are_replaced ? "--on-slow" : "--slow-steps");
    }
    return std::nullopt;
  }
  if (!(*arguments.slow_factor > 1 && *arguments.slow_factor <= kLargestFactor)) {
    throw_error<ArgumentError>("--slow-factor {}: use a number above 1, at most {}", *arguments.slow_factor,
                               kLargestFactor);
  }
  if (arguments.slow_steps < kLeastSteps ||
      arguments.slow_steps > static_cast<int>(observe::kMostLastSteps)) {
    throw_error<ArgumentError>("--slow-steps {}: use {} to {}", arguments.slow_steps, kLeastSteps,
                               observe::kMostLastSteps);
  }
  if (are_replaced && options.on_loss != launch::OnLoss::replace) {
    throw ArgumentError(
        "--on-slow replace needs --on-loss replace, which replaces single ranks; add it, or use "
        "--on-slow report");
  }
  return SlowRanks{.factor = *arguments.slow_factor,
                   .steps = static_cast<std::size_t>(arguments.slow_steps),
                   .are_replaced = are_replaced,
                   .max_restarts = options.max_restarts};
}

}  // namespace

std::optional<WatchOptions> watch_options(const RunArguments& arguments,
                                          const launch::LaunchOptions& options) {
  WatchOptions watch{.progress_timeout = checked_timeout(arguments), .slow = slow_ranks(arguments, options)};
  if (!watch.progress_timeout && !watch.slow) return std::nullopt;
  if (options.nodes) {
    throw_error<ArgumentError>("{} is for one host; leave it out with several nodes and with --hosts",
                               watch.progress_timeout ? "--progress-timeout" : "--slow-factor");
  }
  return watch;
}

RankWatch::RankWatch(const WatchOptions& options, int ranks, launch::RunNotes& notes)
    : options_(options), count_(static_cast<std::size_t>(ranks)), period_(kLongestPeriod), notes_(notes) {
  if (!options.progress_timeout) return;
  period_ =
      std::clamp<std::chrono::milliseconds>(*options.progress_timeout / 10, kShortestPeriod, kLongestPeriod);
  frozen_.emplace(*options.progress_timeout);
}

void RankWatch::watch(int stop) {
  pollfd event{.fd = stop, .events = POLLIN, .revents = 0};
  while (true) {
    const int count = ::poll(&event, 1, static_cast<int>(period_.count()));
    if (count > 0 || (count < 0 && errno != EINTR)) return;
    try {
      look();
    } catch (const std::exception& error) {
      log(std::exchange(has_failed_, true) ? LogLevel::debug : LogLevel::warning,
          fmt::format("a look at the ranks has failed: {}", error.what()));
    }
  }
}

void RankWatch::look() {
  if (must_search()) search();
  if (ranks_.pids.empty()) return;
  const auto run = ranks_.read(/*with_activity=*/false);
  if (frozen_) end_frozen(run);
  if (options_.slow) name_slow(run);
}

bool RankWatch::must_search() const {
  const bool has_changed =
      std::ranges::any_of(processes_, [](const auto& process) { return is_readable(process.second.get()); });
  const auto passed = Clock::now() - searched_at_;
  return has_changed || passed >= (ranks_.progress.size() < count_ ? kHurriedSearchPeriod : kSearchPeriod);
}

// A pidfd names a process for sure: that which is read after it was opened, unless it has ended until then.
void RankWatch::search() {
  std::map<int, UniqueFd> processes;
  std::vector<observe::Process> ranks;
  for (const auto& found : observe::outer_ranks(observe::processes_below(::getpid()))) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, found.pid, 0)));
    if (!fd && errno != ESRCH) throw_error<Error>("pidfd_open: {}", errno_text(errno));
    auto process = fd ? observe::own_process(found.pid) : std::nullopt;
    if (!process || process->parent != found.parent) continue;
    ranks.push_back(std::move(*process));
    processes.emplace(found.pid, std::move(fd));
  }
  ranks_ = observe::joined(observe::find_runs(ranks));
  searched_at_ = Clock::now();
  processes_ = std::move(processes);
  if (!ranks_.problem.empty() && !is_problem_told_) {
    is_problem_told_ = true;
    log(LogLevel::warning, fmt::format("ranks are not watched: {}", ranks_.problem));
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
    auto stack = observe::short_stacks_text(ranks_, rank.pid);
    while (stack.ends_with('\n')) stack.pop_back();
    return "its stack:\n" + stack;
  } catch (const std::exception& error) {
    return fmt::format("its stack cannot be shown: {}", error.what());
  }
}

// A rank that makes progress while its stack is read stays alive, as does one with a group that was not known.
void RankWatch::end_frozen(const observe::Run& run) {
  const observe::ProcessView view{
      .bytes = [this](const auto& rank) { return observe::transferred_bytes(visible_pid(rank)); },
      .is_traced =
          [this](const auto& rank) { return observe::status_number(visible_pid(rank), "TracerPid:") != 0; },
      .waits_in_kernel = [this](const auto& rank) { return observe::is_in_kernel_wait(visible_pid(rank)); }};
  std::map<std::int64_t, std::string> stacks;
  for (const auto& [rank, silent_for] : frozen_->look(run, view)) {
    if (!immortal_.contains(rank->pid)) stacks.emplace(rank->pid, stack_of(*rank));
  }
  if (stacks.empty()) return;
  search();
  const auto now = ranks_.read();
  for (const auto& [rank, silent_for] : frozen_->look(now, view)) {
    const auto stack = stacks.extract(rank->pid);
    if (!stack || !can_kill(*rank)) continue;
    const auto silence = observe::seconds_text(silent_for);
    const auto option = fmt::format("--progress-timeout {:g}",
                                    std::chrono::duration<double>(*options_.progress_timeout).count());
    log(LogLevel::warning, fmt::format("{} It has made no progress for {} and is killed ({}); {}",
                                       observe::stall_text(now, *rank), silence, option, stack.mapped()));
    kill(*rank, fmt::format("no progress for {}; {}", silence, option));
  }
  for (const auto& [pid, stack] : stacks)
    log(LogLevel::debug,
        fmt::format("pid {} has made progress or ended while its stack was read, and is not killed", pid));
}

// Once every so many steps.
void RankWatch::name_slow(const observe::Run& run) {
  const auto& slow = *options_.slow;
  const auto last = observe::judge_last_rank(run, slow.factor, slow.steps);
  if (!last) return;
  const auto& rank = *last->rank;
  auto& named_at = named_at_[rank.pid];
  const auto steps = rank.progress->steps;
  if (named_at != 0 && steps < named_at + slow.steps) return;
  named_at = steps;
  const bool has_restart = notes_.restarts < slow.max_restarts;
  const bool is_replaced = slow.are_replaced && has_restart && can_kill(rank);
  const auto* const end = is_replaced ? " It is killed and replaced (--on-slow replace)."
                          : slow.are_replaced && !has_restart
                              ? " It is not replaced, because no restart is left."
                              : "";
  log(LogLevel::warning, last->text + end);
  if (is_replaced)
    kill(rank, fmt::format("last in {} steps, by a factor of {:g} or more; --on-slow replace", slow.steps,
                           slow.factor));
}

// The system may forbid it.
bool RankWatch::can_kill(const observe::Rank& rank) {
  const int code = signal(rank, 0);
  if (code == 0) return true;
  if (code != ESRCH && immortal_.insert(rank.pid).second)
    log(LogLevel::warning, fmt::format("{} cannot be killed: {}", rank.describe(), errno_text(code)));
  return false;
}

// The rank is the leader of its session, and the process may be one below it.
void RankWatch::kill(const observe::Rank& rank, const std::string& reason) {
  const pid_t leader = ::getsid(visible_pid(rank));
  notes_.note_kill(leader, reason);
  if (signal(rank, SIGKILL) != 0) notes_.withdraw_kill(leader);
}

// The process may run another program by now.
int RankWatch::signal(const observe::Rank& rank, int number) const {
  const int pid = visible_pid(rank);
  const auto process = processes_.find(pid);
  const auto now = observe::own_process(pid);
  if (process == processes_.end() || !now || now->progress.empty()) return ESRCH;
  return ::syscall(SYS_pidfd_send_signal, process->second.get(), number, nullptr, 0) == 0 ? 0 : errno;
}

}  // namespace lockstep::cli
