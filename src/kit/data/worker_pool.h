// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/mutex.h>
#include <lockstep/base/world.h>
#include <lockstep/data/detail/loader_iteration.h>

namespace lockstep::data {

using WorkerClock = std::chrono::steady_clock;

struct BatchSlot {
  enum class State { idle, queued, loading, done };

  State state = State::idle;
  std::int64_t number = 0;  // of the batch within the pass
  std::uint64_t seed = 0;
  at::Tensor indices{};
  int worker = -1;
  std::exception_ptr error{};
};

// The state of one pass, shared by the loop and the workers. The pool's mutex guards it, which clang cannot check: a pass does not know its
// pool. The worker owns a
// slot's batch while the slot is loading; the loop owns it when the slot is done.
struct IterationState {
  std::shared_ptr<BatchStorage> storage{};
  std::vector<BatchSlot> slots{};
  int loading = 0;
  bool loop_waits = false;
  Condition changed{};
};

struct LoadJob {
  std::shared_ptr<IterationState> iteration;
  std::size_t slot;
};

struct WorkerStatus {
  bool busy = false;
  bool ended = false;
  WorkerClock::time_point busy_since{};
};

// Note [Worker pool]
//
// The loop's thread puts jobs into `jobs`; worker threads take them, load batches without the mutex, and mark
// the slots done. Phases: running, then `ending` (set by the loop's thread; workers return after their
// current batch). Invariant: the mutex guards everything but `options`, `info` and `world`, which do not
// change once the workers run. A worker that hangs in get_batch() keeps the pool alive. For the order of
// batches see note [Order of samples] in loader_iteration.cpp.
struct WorkerPool {
  DataLoaderOptions options{};
  WorkerInfo info{};
  std::optional<World> world{};  // when the owner is a thread rank

  Mutex mutex{};
  Condition work{};  // a job arrived, or the pool is ending
  Condition worker_ended{};
  std::deque<LoadJob> jobs LOCKSTEP_GUARDED_BY(mutex){};
  std::vector<WorkerStatus> workers LOCKSTEP_GUARDED_BY(mutex){};
  bool ending LOCKSTEP_GUARDED_BY(mutex) = false;
  bool stuck LOCKSTEP_GUARDED_BY(mutex) = false;

  bool overdue(const WorkerStatus& worker) const {
    return options.timeout && worker.busy &&
           WorkerClock::now() - worker.busy_since >= options.timeout->milliseconds();
  }
};

// The body of a worker thread.
void run_worker(const std::shared_ptr<WorkerPool>& pool, int id);

// A type's name in C++.
std::string type_name(const std::type_info& type);

}  // namespace lockstep::data
