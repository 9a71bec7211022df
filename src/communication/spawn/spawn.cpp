// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <exception>
#include <future>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/mutex.h>
#include <lockstep/device/device.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/spawn/spawn.h>

#include "backends/registry.h"
#include "base/caller_place.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "intercept/thread_defaults.h"
#include "launch/failure_report.h"
#include "machine/gpu.h"
#include "node/thread_exchange.h"
#include "rendezvous/session.h"
#include "rendezvous/store_barrier.h"
#include "runtime/intra_op_threads.h"
#include "spawn/forked_rank.h"
#include "spawn/spawn_guard.h"

namespace lockstep {
namespace spawning {
namespace {

void check_spawn_options(const SpawnOptions& options) {
  if (options.nprocs < 1) {
    throw_error<ArgumentError>("spawn: nprocs is {}; it must be at least 1", options.nprocs);
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

  bool wait(std::optional<Timeout> timeout);
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

bool SpawnContext::Run::wait(std::optional<Timeout> timeout) {
  std::optional<Deadline> deadline;
  if (timeout) deadline.emplace(*timeout);
  while (!ended_) {
    if (deadline && !wait_for(guard_.line.get(), POLLIN, *deadline)) return false;
    at_end();
  }
  return true;
}

namespace {

// Of "0, 2", as the supervisor lists them.
std::vector<int> ranks_in(const std::string& text) {
  std::vector<int> ranks;
  for (const auto& word : split(text, ','))
    if (const auto rank = parse_number<int>(word.substr(word.find_first_not_of(' ')))) ranks.push_back(*rank);
  return ranks;
}

}  // namespace

void SpawnContext::Run::throw_failure() const {
  using Kind = spawning::SpawnOutcome::Kind;
  const auto& outcome = state_.outcome();
  switch (outcome.kind) {
    case Kind::succeeded:
    case Kind::stopped:
      return;
    case Kind::timeout:
      throw_error<TimeoutError>(ErrorDetails{.ranks = ranks_in(outcome.text.get())},
                                "spawn: the run of {} ranks was stopped after {} ms; still running: rank {}",
                                options_.nprocs, options_.timeout->milliseconds().count(),
                                outcome.text.get());
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
  const auto who =
      fmt::format("{} (process {})", numbered_rank(outcome.rank, options_.nprocs), rank.pid.load());
  if (outcome.kind == spawning::SpawnOutcome::Kind::raised) {
    const WithoutPlace place;  // the text is the program's
    throw RankRaised(fmt::format("{} threw {}: {}", who, rank.type.get(), rank.text.get()), outcome.rank,
                     rank.pid, rank.type.get(), rank.text.get());
  }
  const launch::RankExit exit{.rank = outcome.rank,
                              .pid = rank.pid,
                              .code = outcome.code,
                              .signal = outcome.signal,
                              .core_dumped = outcome.core_dumped,
                              .cpu_limit = outcome.cpu_limit};
  throw RankExited(fmt::format("{} {}", who, launch::describe(exit)), outcome.rank, rank.pid,
                   launch::exit_code(exit), outcome.signal);
}

SpawnContext::SpawnContext(std::unique_ptr<Run> run) : run_(std::move(run)) {}
SpawnContext::~SpawnContext() = default;
SpawnContext::SpawnContext(SpawnContext&&) noexcept = default;
SpawnContext& SpawnContext::operator=(SpawnContext&&) noexcept = default;

bool SpawnContext::join(std::optional<Timeout> timeout, std::source_location where) {
  const CallerPlace place(where);
  if (!run_->wait(timeout)) return false;
  run_->throw_failure();
  return true;
}

const std::vector<int>& SpawnContext::pids() const { return run_->pids(); }

int gpu_count() { return machine::visible_gpus(); }

namespace spawning {

SpawnContext spawn_ranks(const SpawnOptions& options, const std::function<void(int)>& body) {
  const CallerPlace place(options.where);
  check_spawn_options(options);
  prepare_to_fork();
  SpawnContext context(std::make_unique<SpawnContext::Run>(options, body));
  if (options.join) context.join(std::nullopt, options.where);
  return context;
}

}  // namespace spawning

namespace spawning {
namespace {

// The store of ranks that are threads of one process. Waiting in it ends when one of them has failed.
class ThreadStore : public c10d::HashStore {
 public:
  explicit ThreadStore(std::shared_ptr<node::ThreadExchange> threads) : threads_(std::move(threads)) {}

  std::vector<std::uint8_t> get(const std::string& key) override {
    wait({key}, getTimeout());
    return HashStore::get(key);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  std::shared_ptr<node::ThreadExchange> threads_;
};

void ThreadStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const Deadline deadline(timeout);
  while (!check(keys)) {
    if (threads_->given_up()) throw RendezvousError("another rank failed before the ranks were connected");
    if (deadline.expired()) {
      throw_error<RendezvousError>("no rank set {} in the ranks' store within {} ms", keys.front(),
                                   timeout.count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The exception of the first rank that failed.
class FirstFailure {
 public:
  void set(int rank, std::exception_ptr error) {
    const MutexLock lock(mutex_);
    if (error_) return;
    rank_ = rank;
    error_ = std::move(error);
  }

  void rethrow(int world_size) const {
    const MutexLock lock(mutex_);
    if (!error_) return;
    const WithoutPlace place;  // the text is that of the rank
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      std::throw_with_nested(
          Error(fmt::format("{} (a thread): {}", numbered_rank(rank_, world_size), error.what())));
    } catch (...) {
      std::throw_with_nested(
          Error(fmt::format("{} (a thread) threw an exception that is not a std::exception",
                            numbered_rank(rank_, world_size))));
    }
  }

 private:
  mutable Mutex mutex_;
  int rank_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Shared by the ranks of one run.
struct Run {
  int world_size;
  const std::function<void(Context&)>& body;
  const SpawnThreadsOptions& options;
  backends::BackendSpec backend;
  at::Generator generator;  // copied by each rank
  std::shared_ptr<node::ThreadExchange> threads = std::make_shared<node::ThreadExchange>();
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<ThreadStore>(threads);
  FirstFailure failure = {};
};

rendezvous::SessionOptions options_of(const Run& run, int rank) {
  const auto& options = run.options;
  rendezvous::SessionOptions own{{.backend = options.backend,
                                  .timeout = options.timeout,
                                  .group_name = options.group_name,
                                  .check_calls = options.check_calls}};
  own.share_devices = options.share_devices;
  if (!options.devices.empty()) own.device = options.devices[static_cast<std::size_t>(rank)];
  return own;
}

void run_rank(Run& run, int rank) {
  const intercept::ThreadGenerator generator(run.generator.clone());
  const rendezvous::RankInfo rank_info{.rank = rank,
                                       .world_size = run.world_size,
                                       .local_rank = rank,
                                       .local_world_size = run.world_size,
                                       .source = "spawn_threads"};
  rendezvous::store_barrier(*run.store, rank, {.world_size = run.world_size}, Deadline(run.options.timeout));
  Context context(
      rendezvous::Session::connect(options_of(run, rank), run.backend, rank_info, run.store, run.threads));
  try {
    run.body(context);
  } catch (...) {
    // Before the others see the end of the context, and fail as a consequence.
    run.failure.set(rank, std::current_exception());
    throw;
  }
}

void run_rank_and_report(Run& run, int rank) {
  try {
    run_rank(run, rank);
  } catch (...) {
    run.failure.set(rank, std::current_exception());
    run.threads->give_up();
  }
}

void check_options(int world_size, const SpawnThreadsOptions& options) {
  if (world_size < 1)
    throw_error<ArgumentError>("spawn_threads: world_size is {}; one or more ranks are needed", world_size);
  if (!options.devices.empty() && options.devices.size() != static_cast<std::size_t>(world_size)) {
    throw_error<ArgumentError>("spawn_threads: {} devices for {} ranks; set one per rank, or none",
                               options.devices.size(), world_size);
  }
  if (options.threads_per_rank.value_or(1) < 1) {
    throw_error<ArgumentError>("spawn_threads: threads_per_rank is {}; it must be 1 or more",
                               *options.threads_per_rank);
  }
  if (is_thread_rank())
    throw ArgumentError(
        "spawn_threads: this thread is already a rank, and ranks cannot start ranks; call it outside of "
        "them");
  const auto device = options.devices.empty() ? c10::Device(c10::kCPU) : options.devices.front();
  const auto backend = backends::BackendSpec::parse(options.backend);
  backends::check_environment(backends::resolve_backend(backend, {.device = device}).spec, Env());
}

}  // namespace
}  // namespace spawning

void spawn_threads(int world_size, const std::function<void(Context&)>& body,
                   const SpawnThreadsOptions& options, std::source_location where) {
  const CallerPlace place(where);
  using namespace spawning;
  check_options(world_size, options);
  if (options.caching_cpu_allocator) enable_caching_cpu_allocator();
  intercept::ThreadGenerator::register_kernels();
  const runtime::IntraOpThreads intra_op(threads_per_rank(options.threads_per_rank, world_size));
  const rendezvous::IgnoreSigpipe ignored;
  Run run{.world_size = world_size,
          .body = body,
          .options = options,
          .backend = backends::BackendSpec::parse(options.backend),
          .generator = default_generator()};
  // No rank starts before all threads exist, because each waits for all others.
  std::promise<bool> all_started;
  const auto start = all_started.get_future().share();
  {
    std::vector<std::jthread> ranks;
    try {
      for (int rank = 0; rank < world_size; ++rank) {
        ranks.emplace_back([&run, start, rank] {
          if (start.get()) run_rank_and_report(run, rank);
        });
      }
    } catch (const std::system_error& error) {
      all_started.set_value(false);
      const auto rank = static_cast<int>(ranks.size());
      throw_error<LaunchError>(ErrorDetails{.ranks = {rank}}, "spawn_threads: {} could not be started: {}",
                               numbered_rank(rank, world_size), start_error_text(error.code().value()));
    }
    all_started.set_value(true);
  }
  run.failure.rethrow(world_size);
}

}  // namespace lockstep
