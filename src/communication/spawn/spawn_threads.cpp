// SPDX-License-Identifier: BSD-3-Clause
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>
#include <lockstep/runtime/random.h>
#include <lockstep/spawn/spawn.h>

#include "backends/registry.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/throw_error.h"
#include "intercept/thread_defaults.h"
#include "node/thread_exchange.h"
#include "rendezvous/session.h"
#include "rendezvous/store_barrier.h"
#include "runtime/intra_op_threads.h"
#include "spawn/spawn_rank.h"

namespace lockstep {
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
    const std::lock_guard lock(mutex_);
    if (error_) return;
    rank_ = rank;
    error_ = std::move(error);
  }

  void rethrow(int world_size) const {
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      std::throw_with_nested(
          Error(fmt::format("rank {} of {} (a thread): {}", rank_, world_size, error.what())));
    } catch (...) {
      std::throw_with_nested(Error(fmt::format(
          "rank {} of {} (a thread) threw an exception that is not a std::exception", rank_, world_size)));
    }
  }

 private:
  std::mutex mutex_;
  int rank_ = 0;
  std::exception_ptr error_;
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
  rendezvous::store_barrier(*run.store, rank, run.world_size, Deadline(run.options.timeout));
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
  if (options.timeout.count() <= 0) {
    throw_error<ArgumentError>("spawn_threads: timeout is {} ms; it must be positive",
                               options.timeout.count());
  }
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
                   const SpawnThreadsOptions& options) {
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
    } catch (...) {
      all_started.set_value(false);
      throw;
    }
    all_started.set_value(true);
  }
  run.failure.rethrow(world_size);
}

}  // namespace lockstep
