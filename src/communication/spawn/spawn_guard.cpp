// SPDX-License-Identifier: BSD-3-Clause
#include "spawn/spawn_guard.h"

#include <cerrno>
#include <map>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/limits.h"
#include "base/throw_error.h"
#include "launch/guard.h"
#include "launch/process_tree.h"
#include "launch/rank_supervisor.h"
#include "spawn/forked_rank.h"

namespace lockstep::spawning {
namespace {

using std::chrono::milliseconds;

// A rank that throws needs time to unwind. Other ranks may see its end and fail meanwhile.
constexpr milliseconds kConfirmLimit{500};

[[noreturn]] void fail_to_spawn(const std::string& step, ErrorDetails about = {}) {
  throw_error<LaunchError>(std::move(about), "spawn: {}: {}", step, start_error_text(errno));
}

// Starts the ranks of spawn() and waits for their end. See RankSupervisor for phases, threads and invariants.
class SpawnSupervisor : private launch::RankSupervisor {
 public:
  // `line`: to the caller; `parent`: the pidfd of the process above.
  SpawnSupervisor(const SpawnRequest& request, int line, int parent)
      : RankSupervisor({.grace_period = request.options.grace_period, .confirm = kConfirmLimit}, {}, parent,
                       "spawn: "),
        request_(request),
        line_(line) {}

  // Throws LaunchError when the system refuses a process. `foreign`: descriptors that are not for ranks.
  void start_ranks(std::vector<int> foreign);
  using RankSupervisor::signal_fd;
  // Returns when no process is left below this one and the outcome has been written, or the parent has died.
  void run();

 private:
  std::optional<launch::RankExit> take_exit(const launch::RankExit& child) override;
  bool has_ranks() const override { return !ranks_.empty(); }
  launch::FailureReport report(const launch::RankExit& exit) override {
    const auto& rank = request_.state.rank(exit.rank);
    return {.first = exit, .lost_peer = rank.raised && rank.peer_lost};
  }
  void signal_ranks(int signal) override;
  milliseconds leftover_limit() const override { return stopped_early() ? milliseconds(0) : grace_period(); }
  void on_run_timeout() override;

  milliseconds grace_period() const { return request_.options.grace_period; }
  bool stopped_early() const {
    return failures().any() || stop_requested_ ||
           request_.state.outcome().kind == SpawnOutcome::Kind::timeout;
  }
  void record_outcome() const;

  const SpawnRequest& request_;
  const int line_;
  std::map<pid_t, int> ranks_;  // alive
  bool stop_requested_ = false;
};

void SpawnSupervisor::start_ranks(std::vector<int> foreign) {
  const auto& options = request_.options;
  foreign.push_back(signal_fd());
  const pid_t self = ::getpid();
  begin_run(options.timeout);
  for (int rank = 0; rank < options.nprocs; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0)
      fail_to_spawn(numbered_rank(rank, options.nprocs) + " could not be started", {.ranks = {rank}});
    if (pid == 0) run_spawned_rank(request_, rank, self, foreign);
    ranks_.emplace(pid, rank);
    request_.state.rank(rank).pid = pid;
  }
  const char started = '.';
  static_cast<void>(::send(line_, &started, 1, MSG_NOSIGNAL));
}

void SpawnSupervisor::run() {
  while (phase() != Phase::idle) {
    // The caller sends nothing: its line is readable when it has shut it down, and stays so. poll() ignores
    // -1.
    std::vector<pollfd> events{{.fd = stop_requested_ ? -1 : line_, .events = POLLIN, .revents = 0}};
    if (!wait(events)) {
      launch::kill_descendants();
      return;
    }
    handle_signals();
    if (events[0].revents != 0) {
      stop_requested_ = true;
      begin_stop(SIGTERM);
    }
    advance();
  }
  record_outcome();
}

std::optional<launch::RankExit> SpawnSupervisor::take_exit(const launch::RankExit& child) {
  const auto rank = ranks_.extract(child.pid);
  if (rank.empty()) return std::nullopt;
  auto exit = child;
  exit.rank = rank.mapped();
  return exit;
}

// Ranks are in the caller's process group, so their children are signalled one by one.
void SpawnSupervisor::signal_ranks(int signal) {
  if (ranks_.empty()) return;
  launch::signal_descendants(signal);
  launch::signal_descendants(SIGCONT);
}

void SpawnSupervisor::on_run_timeout() {
  std::vector<int> running;
  for (const auto& [pid, rank] : ranks_) running.push_back(rank);
  std::ranges::sort(running);
  auto& outcome = request_.state.outcome();
  outcome.text.set(fmt::format("{}", fmt::join(running, ", ")));
  outcome.kind = SpawnOutcome::Kind::timeout;
  begin_stop(SIGTERM);
}

void SpawnSupervisor::record_outcome() const {
  using Kind = SpawnOutcome::Kind;
  auto& outcome = request_.state.outcome();
  if (outcome.kind != Kind::none) return;
  if (!failures().any()) {
    outcome.kind = stop_requested_ ? Kind::stopped : Kind::succeeded;
    return;
  }
  const auto& first = failures().first().first;
  outcome.rank = first.rank;
  outcome.code = first.code;
  outcome.signal = first.signal;
  outcome.core_dumped = first.core_dumped;
  outcome.cpu_limit = first.cpu_limit;
  outcome.kind = request_.state.rank(first.rank).raised && first.signal == 0 ? Kind::raised : Kind::exited;
}

// Leaves the caller's session and process group, and closes the descriptors that the caller had open.
void detach(const char* name, std::vector<int> needed) {
  ::setsid();
  ::prctl(PR_SET_NAME, name);
  needed.insert(needed.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO});
  std::ranges::sort(needed);
  unsigned next = 0;
  for (const int fd : needed) {
    if (static_cast<unsigned>(fd) > next) ::close_range(next, static_cast<unsigned>(fd) - 1, 0);
    next = static_cast<unsigned>(fd) + 1;
  }
  ::close_range(next, ~0U, 0);
}

struct Line {
  UniqueFd caller{};
  UniqueFd guards{};
};

Line make_line() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_to_spawn("the ranks' supervisor could not be connected");
  return {.caller = UniqueFd(ends[0]), .guards = UniqueFd(ends[1])};
}

// The process "spawn-watch".
int supervise_ranks(const SpawnRequest& request, const Line& line, int caller, int parent) {
  try {
    SpawnSupervisor supervisor(request, line.guards.get(), parent);
    supervisor.start_ranks({line.caller.get(), line.guards.get(), caller, parent});
    // Only now: the ranks belong to the caller's process group and have its name.
    detach("spawn-watch", {line.guards.get(), parent, supervisor.signal_fd()});
    supervisor.run();
  } catch (const std::exception& error) {
    launch::kill_descendants();
    request.state.record_error(error.what());
  }
  ::_exit(0);
}

// The process "spawn-guard".
[[noreturn]] void guard_ranks(const SpawnRequest& request, const Line& line, int caller) {
  try {
    // With SIGCHLD ignored, as it may be in the caller, the kernel would reap the ranks.
    ::signal(SIGCHLD, SIG_DFL);
    const auto exit =
        launch::run_guarded([&](int parent) { return supervise_ranks(request, line, caller, parent); },
                            {.detach = false, .owner = caller, .before_wait = [&](std::vector<int> needed) {
                               needed.insert(needed.end(), {line.guards.get(), caller});
                               detach("spawn-guard", std::move(needed));
                             }});
    if (exit.signal != 0) request.state.record_error("spawn: " + describe(exit));
  } catch (const std::exception& error) {
    launch::kill_descendants();
    request.state.record_error(error.what());
  }
  ::_exit(0);
}

sigset_t all_signals() {
  sigset_t set;
  sigfillset(&set);
  return set;
}

}  // namespace

SpawnState::SpawnState(int nprocs) {
  const auto bytes = sizeof(Header) + static_cast<std::size_t>(nprocs) * sizeof(RankState);
  memory_ = SharedMemory::create("lockstep-spawn", bytes);
  memory_.commit(0, bytes, "spawn's reports");
  ::new (header()) Header{};
  for (int index = 0; index < nprocs; ++index) ::new (&rank(index)) RankState{};
}

RankState& SpawnState::rank(int rank) const {
  return reinterpret_cast<RankState*>(memory_.data() + sizeof(Header))[rank];
}

void SpawnState::record_error(const std::string& message) const {
  if (outcome().kind != SpawnOutcome::Kind::none) return;
  outcome().text.set(message);
  outcome().kind = SpawnOutcome::Kind::error;
}

SpawnGuard start_spawn_guard(const SpawnRequest& request) {
  auto line = make_line();
  // Opened before the fork, so that the guard cannot miss an early death.
  const auto caller = launch::open_pidfd(::getpid());
  flush_streams();
  const launch::BlockedSignals blocked(all_signals());
  const pid_t pid = ::fork();
  if (pid < 0) fail_to_spawn("the ranks' supervisor could not be started");
  if (pid == 0) guard_ranks(request, line, caller.get());
  return {.pid = pid, .line = std::move(line.caller)};
}

}  // namespace lockstep::spawning
