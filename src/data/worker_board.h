// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/world.h>
#include <lockstep/data/loader_workers.h>

namespace lockstep::data {

using WorkerClock = std::chrono::steady_clock;

struct SlotEntry {
  enum class State { idle, queued, loading, done };

  State state = State::idle;
  std::int64_t number = 0;  // of the batch within its pass
  std::uint64_t seed = 0;
  at::Tensor indices{};
  int worker = -1;
  std::exception_ptr error{};
};

// What the loop and the workers share of a pass. Guarded by the mutex of the WorkerBoard; a slot's batch is
// its worker's while the entry is loading, the loop's when it is done.
struct PassBoard {
  std::shared_ptr<BatchSlots> slots{};
  std::vector<SlotEntry> entries{};
  int loading = 0;
  bool waits = false;  // the loop does, for a batch of this pass
  std::condition_variable changed{};
};

struct WorkerJob {
  std::shared_ptr<PassBoard> pass;
  std::size_t slot;
};

struct WorkerStatus {
  bool busy = false;
  bool ended = false;
  WorkerClock::time_point since{};  // when what it does began
};

// What the loop and the workers share. A worker that is stuck keeps it alive.
struct WorkerBoard {
  LoaderOptions options{};
  WorkerInfo info{};
  std::optional<World> world{};  // of the thread that is a rank to which the workers belong

  std::mutex mutex{};
  std::condition_variable work{};   // there is a job, or it is over
  std::condition_variable ended{};  // a worker has ended
  std::deque<WorkerJob> jobs{};
  std::vector<WorkerStatus> workers{};
  bool ending = false;
  bool stuck = false;

  bool overdue(const WorkerStatus& worker) const {
    return options.timeout.count() > 0 && worker.busy && WorkerClock::now() - worker.since >= options.timeout;
  }
};

// What a worker does until the board says that it is over.
void run_worker(const std::shared_ptr<WorkerBoard>& board, int id);

}  // namespace lockstep::data
