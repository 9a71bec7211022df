// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <lockstep/spawn/spawn.h>

#include "base/deadline.h"
#include "base/sockets.h"
#include "base/throw_error.h"
#include "launch/failure_report.h"
#include "machine/gpu.h"
#include "spawn/fork_check.h"
#include "spawn/spawn_guard.h"

namespace lockstep {
namespace spawning {
namespace {

void check_spawn_options(const SpawnOptions& options) {
  if (options.nprocs < 1) {
    throw_error<ArgumentError>("spawn: nprocs is {}; it must be at least 1", options.nprocs);
  }
  if (options.timeout.count() < 0) {
    throw_error<ArgumentError>("spawn: timeout is {} ms; it must not be negative (0: none)",
                               options.timeout.count());
  }
  if (options.grace_period.count() < 0) {
    throw_error<ArgumentError>("spawn: grace_period is {} ms; it must not be negative",
                               options.grace_period.count());
  }
  if (options.threads_per_rank.value_or(1) < 1) {
    throw_error<ArgumentError>("spawn: threads_per_rank is {}; it must be 1 or more",
                               *options.threads_per_rank);
  }
}

sigset_t signals_blocked_now() {
  sigset_t set;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &set);
  return set;
}

}  // namespace
}  // namespace spawning

// The caller's part of a run.
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
  spawning::SpawnState state_;
  ReservedPort port_;
  spawning::SpawnGuard guard_;
  std::vector<int> pids_;
  bool ended_ = false;
};

SpawnContext::Run::Run(const SpawnOptions& options, const std::function<void(int)>& body)
    : options_(options), state_(options.nprocs) {
  guard_ = spawning::start_spawn_guard({.options = options_,
                                        .body = body,
                                        .state = state_,
                                        .master_port = port_.port(),
                                        .signals = spawning::signals_blocked_now()});
  await_start();
  for (int rank = 0; rank < options.nprocs; ++rank) pids_.push_back(state_.rank(rank).pid);
}

SpawnContext::Run::~Run() {
  ::shutdown(guard_.line.get(), SHUT_WR);
  wait(std::nullopt);
}

void SpawnContext::Run::await_start() {
  if (at_end()) throw_failure();
}

// Reads the line; at its end the guards have ended.
bool SpawnContext::Run::at_end() {
  char byte = 0;
  ssize_t count = -1;
  while ((count = ::recv(guard_.line.get(), &byte, 1, 0)) < 0 && errno == EINTR) {
  }
  if (count > 0) return false;
  ended_ = true;
  // The program may have reaped it.
  while (::waitpid(guard_.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return true;
}

bool SpawnContext::Run::wait(std::optional<std::chrono::milliseconds> timeout) {
  std::optional<Deadline> deadline;
  if (timeout) deadline.emplace(*timeout);
  while (!ended_) {
    if (deadline && !wait_for(guard_.line.get(), POLLIN, *deadline)) return false;
    at_end();
  }
  return true;
}

void SpawnContext::Run::throw_failure() const {
  using Kind = spawning::SpawnOutcome::Kind;
  const auto& outcome = state_.outcome();
  switch (outcome.kind) {
    case Kind::succeeded:
    case Kind::stopped:
      return;
    case Kind::timeout:
      throw_error<TimeoutError>("spawn: the run of {} ranks was stopped after {} ms; still running: rank {}",
                                options_.nprocs, options_.timeout.count(), outcome.text.get());
    case Kind::error:
      throw LaunchError(outcome.text.get());
    case Kind::none:
      throw LaunchError("spawn: the supervisor of the ranks was killed; all ranks were killed too");
    case Kind::raised:
    case Kind::exited:
      throw_rank_failure();
  }
}

void SpawnContext::Run::throw_rank_failure() const {
  const auto& outcome = state_.outcome();
  const auto& rank = state_.rank(outcome.rank);
  const auto who = fmt::format("rank {} of {} (process {})", outcome.rank, options_.nprocs, rank.pid.load());
  if (outcome.kind == spawning::SpawnOutcome::Kind::raised) {
    throw RankRaised(fmt::format("{} threw {}: {}", who, rank.type.get(), rank.text.get()), outcome.rank,
                     rank.pid, rank.type.get(), rank.text.get());
  }
  const launch::RankExit exit{.rank = outcome.rank,
                              .pid = rank.pid,
                              .code = outcome.code,
                              .signal = outcome.signal,
                              .core_dumped = outcome.core_dumped};
  throw RankExited(fmt::format("{} {}", who, launch::describe(exit)), outcome.rank, rank.pid,
                   launch::exit_code(exit), outcome.signal);
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

int gpu_count() { return machine::visible_gpus(); }

namespace spawning {

SpawnContext spawn_ranks(const SpawnOptions& options, const std::function<void(int)>& body) {
  check_spawn_options(options);
  prepare_to_fork();
  SpawnContext context(std::make_unique<SpawnContext::Run>(options, body));
  if (options.join) context.join();
  return context;
}

}  // namespace spawning
}  // namespace lockstep
