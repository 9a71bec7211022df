// SPDX-License-Identifier: BSD-3-Clause
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <lockstep/backends/registry.h>
#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/device/keep_freed_memory.h>
#include <lockstep/rendezvous/random.h>
#include <lockstep/rendezvous/spawn_threads.h>

#include "device/thread_generator.h"
#include "rendezvous/arrival.h"
#include "rendezvous/intra_op_threads.h"
#include "rendezvous/session.h"
#include "rendezvous/thread_store.h"

namespace lockstep {
namespace rendezvous {
namespace {

// What the first rank that failed threw.
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
      std::throw_with_nested(
          Error(fmt::format("rank {} of {} (a thread) threw what is no std::exception", rank_, world_size)));
    }
  }

 private:
  std::mutex mutex_;
  int rank_ = 0;
  std::exception_ptr error_;
};

// What the ranks of one run share.
struct Run {
  int world_size;
  const std::function<void(Context&)>& body;
  const SpawnThreadsOptions& options;
  at::Generator generator;  // of which each rank's is a copy
  std::shared_ptr<comm::ThreadMeeting> threads = std::make_shared<comm::ThreadMeeting>();
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<ThreadStore>(threads);
  FirstFailure failure = {};
};

InitOptions options_of(const Run& run, int rank) {
  const auto& options = run.options;
  InitOptions own{.backend = options.backend,
                  .timeout = options.timeout,
                  .group_name = options.group_name,
                  .check_calls = options.check_calls,
                  .env = options.env};
  own.share_devices = options.share_devices;
  if (!options.devices.empty()) own.device = options.devices[static_cast<std::size_t>(rank)];
  return own;
}

void be_rank(Run& run, int rank) {
  const device::ThreadGenerator generator(run.generator.clone());
  const Placement placement{.rank = rank,
                            .world_size = run.world_size,
                            .local_rank = rank,
                            .local_world_size = run.world_size,
                            .source = "spawn_threads"};
  await_all(*run.store, rank, run.world_size, Deadline(run.options.timeout));
  Context context(std::make_unique<Session>(options_of(run, rank), placement, run.store, run.threads));
  try {
    run.body(context);
  } catch (...) {
    // Before the others see that the context ends, and fail in their turn.
    run.failure.set(rank, std::current_exception());
    throw;
  }
}

void try_to_be_rank(Run& run, int rank) {
  try {
    be_rank(run, rank);
  } catch (...) {
    run.failure.set(rank, std::current_exception());
    run.threads->give_up();
  }
}

void check_options(int world_size, const SpawnThreadsOptions& options) {
  if (world_size < 1)
    throw ArgumentError(fmt::format("spawn_threads: {} ranks; one or more are needed", world_size));
  if (options.timeout.count() <= 0) {
    throw ArgumentError(
        fmt::format("spawn_threads: timeout is {} ms; it must be positive", options.timeout.count()));
  }
  if (!options.devices.empty() && options.devices.size() != static_cast<std::size_t>(world_size)) {
    throw ArgumentError(fmt::format("spawn_threads: {} devices for {} ranks; one each, or none, is needed",
                                    options.devices.size(), world_size));
  }
  if (options.threads_per_rank.value_or(1) < 1) {
    throw ArgumentError(fmt::format("spawn_threads: threads_per_rank is {}", *options.threads_per_rank));
  }
  if (is_thread_rank()) throw ArgumentError("spawn_threads: this thread is a rank already");
  const auto device = options.devices.empty() ? c10::Device(c10::kCPU) : options.devices.front();
  backends::check_environment(backends::resolve_backend(options.backend, {.device = device}).name,
                              options.env);
}

int threads_of_rank(int world_size, const SpawnThreadsOptions& options) {
  if (options.threads_per_rank) return *options.threads_per_rank;
  if (options.env.has("OMP_NUM_THREADS")) return at::get_num_threads();
  return std::max(1, usable_cores() / world_size);
}

}  // namespace
}  // namespace rendezvous

void spawn_threads(int world_size, const std::function<void(Context&)>& body,
                   const SpawnThreadsOptions& options) {
  using namespace rendezvous;
  check_options(world_size, options);
  if (options.keep_freed_memory) keep_freed_memory();
  device::ThreadGenerator::prepare();
  const IntraOpThreads intra_op(threads_of_rank(world_size, options));
  Run run{.world_size = world_size, .body = body, .options = options, .generator = default_generator()};
  // Nobody begins before all can: what is waited for must come.
  std::promise<bool> all_there;
  const auto start = all_there.get_future().share();
  {
    std::vector<std::jthread> ranks;
    try {
      for (int rank = 0; rank < world_size; ++rank) {
        ranks.emplace_back([&run, start, rank] {
          if (start.get()) try_to_be_rank(run, rank);
        });
      }
    } catch (...) {
      all_there.set_value(false);
      throw;
    }
    all_there.set_value(true);
  }
  run.failure.rethrow(world_size);
}

}  // namespace lockstep
