// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/reserved_port.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/rendezvous/spawn.h>

#include "rendezvous/fork_check.h"
#include "rendezvous/spawn_guard.h"

namespace lockstep {
namespace rendezvous {
namespace {

void check_spawn_options(const SpawnOptions& options) {
  if (options.nprocs < 1) {
    throw ArgumentError(fmt::format("spawn: nprocs is {}; one or more are needed", options.nprocs));
  }
  if (options.timeout.count() < 0) {
    throw ArgumentError(
        fmt::format("spawn: timeout is {} ms; it must not be negative (0: none)", options.timeout.count()));
  }
  if (options.grace_period.count() < 0) {
    throw ArgumentError(
        fmt::format("spawn: grace_period is {} ms; it must not be negative", options.grace_period.count()));
  }
  if (options.threads_per_rank.value_or(1) < 1) {
    throw ArgumentError(fmt::format("spawn: threads_per_rank is {}", *options.threads_per_rank));
  }
}

sigset_t signals_blocked_now() {
  sigset_t set;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &set);
  return set;
}

// False when `deadline` passes before something can be read from `fd`, or its end has come.
bool wait_readable(int fd, const std::optional<Deadline>& deadline) {
  while (true) {
    constexpr std::int64_t hour = 3'600'000;
    const auto limit = deadline ? std::min<std::int64_t>(deadline->remaining().count(), hour) : hour;
    pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&event, 1, static_cast<int>(limit)) > 0) return true;
    if (deadline && deadline->expired()) return false;
  }
}

}  // namespace
}  // namespace rendezvous

// All that the caller has of a run.
class SpawnContext::Run {
 public:
  Run(const SpawnOptions& options, const std::function<void(int)>& body);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  bool wait(std::optional<std::chrono::milliseconds> timeout);
  void throw_failure() const;
  const std::vector<int>& pids() const { return pids_; }

 private:
  void await_start();
  bool at_end();
  [[noreturn]] void throw_rank_failure() const;

  SpawnOptions options_;
  rendezvous::SpawnBoard board_;
  ReservedPort port_;
  rendezvous::SpawnGuard guard_;
  std::vector<int> pids_;
  bool ended_ = false;
};

SpawnContext::Run::Run(const SpawnOptions& options, const std::function<void(int)>& body)
    : options_(options), board_(options.nprocs) {
  guard_ = rendezvous::start_spawn_guard({.options = options_,
                                          .body = body,
                                          .board = board_,
                                          .master_port = port_.port(),
                                          .signals = rendezvous::signals_blocked_now()});
  await_start();
  for (int rank = 0; rank < options.nprocs; ++rank) pids_.push_back(board_.rank(rank).pid);
}

SpawnContext::Run::~Run() {
  ::shutdown(guard_.line.get(), SHUT_WR);
  wait(std::nullopt);
}

void SpawnContext::Run::await_start() {
  rendezvous::wait_readable(guard_.line.get(), std::nullopt);
  if (at_end()) throw_failure();
}

// Reads what the line has; the guards are gone at its end.
bool SpawnContext::Run::at_end() {
  char byte = 0;
  ssize_t count = -1;
  while ((count = ::recv(guard_.line.get(), &byte, 1, 0)) < 0 && errno == EINTR) {
  }
  if (count > 0) return false;
  ended_ = true;
  // Its exit was the line's end. Whoever else waits for children may have had it.
  while (::waitpid(guard_.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return true;
}

bool SpawnContext::Run::wait(std::optional<std::chrono::milliseconds> timeout) {
  std::optional<Deadline> deadline;
  if (timeout) deadline.emplace(*timeout);
  while (!ended_) {
    if (!rendezvous::wait_readable(guard_.line.get(), deadline)) return false;
    at_end();
  }
  return true;
}

void SpawnContext::Run::throw_failure() const {
  using Kind = rendezvous::SpawnVerdict::Kind;
  const auto& verdict = board_.verdict();
  switch (verdict.kind) {
    case Kind::well:
    case Kind::stopped:
      return;
    case Kind::timeout:
      throw TimeoutError(
          fmt::format("spawn: not all of {} ranks had ended after {} ms, so they were stopped; "
                      "still running: rank {}",
                      options_.nprocs, options_.timeout.count(), verdict.text.get()));
    case Kind::trouble:
      throw LaunchError(verdict.text.get());
    case Kind::none:
      throw LaunchError("spawn: the process that watches over the ranks was killed, and all ranks with it");
    case Kind::raised:
    case Kind::exited:
      throw_rank_failure();
  }
}

void SpawnContext::Run::throw_rank_failure() const {
  const auto& verdict = board_.verdict();
  const auto& rank = board_.rank(verdict.rank);
  const auto who = fmt::format("rank {} of {} (process {})", verdict.rank, options_.nprocs, rank.pid.load());
  if (verdict.kind == rendezvous::SpawnVerdict::Kind::raised) {
    throw RankRaised(fmt::format("{} threw {}: {}", who, rank.type.get(), rank.text.get()), verdict.rank,
                     rank.pid, rank.type.get(), rank.text.get());
  }
  const launch::RankExit exit{.rank = verdict.rank,
                              .pid = rank.pid,
                              .code = verdict.code,
                              .signal = verdict.signal,
                              .core_dumped = verdict.core_dumped};
  throw RankExited(fmt::format("{} {}", who, launch::describe(exit)), verdict.rank, rank.pid,
                   launch::exit_code(exit), verdict.signal);
}

SpawnContext::SpawnContext(std::unique_ptr<Run> run) : run_(std::move(run)) {}
SpawnContext::~SpawnContext() = default;
SpawnContext::SpawnContext(SpawnContext&&) noexcept = default;
SpawnContext& SpawnContext::operator=(SpawnContext&&) noexcept = default;

bool SpawnContext::join(std::optional<std::chrono::milliseconds> timeout) {
  if (!run_->wait(timeout)) return false;
  run_->throw_failure();
  return true;
}

const std::vector<int>& SpawnContext::pids() const { return run_->pids(); }

namespace rendezvous {

SpawnContext spawn_ranks(const SpawnOptions& options, const std::function<void(int)>& body) {
  check_spawn_options(options);
  prepare_to_fork(Env());
  SpawnContext context(std::make_unique<SpawnContext::Run>(options, body));
  if (options.join) context.join();
  return context;
}

}  // namespace rendezvous
}  // namespace lockstep
