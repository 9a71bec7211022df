// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/detail/loader_iteration.h>

#include "base/limits.h"
#include "base/rank_progress.h"
#include "data/worker_pool.h"
#include "intercept/thread_defaults.h"

namespace lockstep::data {
namespace {

constexpr int kDefaultPrefetchFactor = 2;
constexpr std::int64_t kMaxIndicesShown = 8;

std::string indices_text(const at::Tensor& indices) {
  const auto shown = std::min(indices.numel(), kMaxIndicesShown);
  const auto* const begin = indices.const_data_ptr<std::int64_t>();
  return fmt::format("[{}{}]", fmt::join(begin, begin + shown, ", "),
                     shown < indices.numel() ? fmt::format(", ... {} in total", indices.numel()) : "");
}

std::string timeout_text(const WorkerPool& pool, const BatchSlot& slot) LOCKSTEP_REQUIRES(pool.mutex) {
  const auto waited =
      fmt::format("DataLoader timed out after {} seconds: ",
                  std::chrono::duration<double>(pool.options.timeout->milliseconds()).count());
  if (slot.state != BatchSlot::State::loading) {
    return fmt::format("{}no worker has started batch {} of the pass, with indices {}; all {} are busy",
                       waited, slot.number, indices_text(slot.indices), pool.workers.size());
  }
  const std::chrono::duration<double> loads =
      WorkerClock::now() - pool.workers[static_cast<std::size_t>(slot.worker)].busy_since;
  return fmt::format(
      "{}worker {} has been reading batch {} of the pass, with indices {}, for {:.1f} s; check what it waits "
      "for, or raise the timeout",
      waited, slot.worker, slot.number, indices_text(slot.indices), loads.count());
}

}  // namespace

BatchWait::BatchWait() noexcept : progress_(progress_of_trainer()) {
  if (progress_ != nullptr) enter_phase(*progress_, Phase::data);
}

BatchWait::~BatchWait() {
  if (progress_ != nullptr) enter_phase(*progress_, Phase::other);
}

void BatchWait::count(std::int64_t samples) const noexcept {
  if (progress_ != nullptr) progress_->samples.fetch_add(static_cast<std::uint64_t>(samples));
}

LoaderWorkers::LoaderWorkers(const DataLoaderOptions& options, const WorkerInfo& info)
    : pool_(std::make_shared<WorkerPool>()) {
  intercept::ThreadGenerator::register_kernels();
  pool_->options = options;
  pool_->info = info;
  if (is_thread_rank()) pool_->world = current_world();
  const auto now = WorkerClock::now();
  pool_->workers.assign(static_cast<std::size_t>(options.num_workers), {.busy = true, .busy_since = now});
  try {
    for (int id = 0; id < options.num_workers; ++id) {
      threads_.push_back(start_thread<std::thread>("a worker of a DataLoader",
                                                   [pool = pool_, id] { run_worker(pool, id); }));
    }
  } catch (...) {
    end();
    throw;
  }
}

LoaderWorkers::~LoaderWorkers() { end(); }

std::size_t LoaderWorkers::capacity() const {
  return static_cast<std::size_t>(pool_->options.num_workers) *
         static_cast<std::size_t>(pool_->options.prefetch_factor.value_or(kDefaultPrefetchFactor));
}

bool LoaderWorkers::stuck() const {
  const MutexLock lock(pool_->mutex);
  return pool_->stuck;
}

void LoaderWorkers::end() noexcept {
  MutexLock lock(pool_->mutex);
  pool_->ending = true;
  pool_->jobs.clear();
  pool_->work.notify_all();
  for (std::size_t id = 0; id < threads_.size(); ++id) {
    const auto& worker = pool_->workers[id];
    const auto& timeout = pool_->options.timeout;
    while (!worker.ended && !pool_->overdue(worker)) {
      if (!timeout) {
        pool_->worker_ended.wait(pool_->mutex);
      } else {
        const auto limit = timeout->milliseconds();
        pool_->worker_ended.wait_until(pool_->mutex, std::max(worker.busy_since + limit, WorkerClock::now()));
      }
    }
    const bool ended = worker.ended;
    lock.unlock();
    if (ended) {
      threads_[id].join();
    } else {
      log(LogLevel::warning,
          fmt::format("DataLoader worker {} is stuck reading a batch; its thread keeps running", id));
      threads_[id].detach();
    }
    lock.lock();
  }
}

// Note [Order of samples]
//
// Batches reach the loop in the order of the sampler, with random numbers that do not depend on the workers:
//
//     stream        0   1   2   3   4   5 ...     indices, drawn by the loop's thread alone
//     slots        [0] [1] [2] [3]                num_workers * prefetch_factor of them
//     jobs          0   1   2   3                 a queue; a free worker takes the first one
//     workers       A:0     B:1     A:2           load in any order of completion
//     outstanding_  0   1   2   3                 slots in the order of their requests
//     loop          waits for the first; with in_order = false, takes whichever is done
//
// A slot that the loop has taken is requested again at once, for the next batch of the stream. The number of
// a batch in the pass determines the seed that the worker's generator gets before it loads the batch, so the
// number of workers and their timing change no random number. A pass that resumes starts at `first_batch`
// with the same numbers and seeds.
//
// An error of a worker stays in its slot and is thrown at the batch's place. An error of the stream is thrown
// after the batches before it.
WorkerIteration::WorkerIteration(std::shared_ptr<LoaderWorkers> workers,
                                 std::shared_ptr<BatchStorage> storage, LoaderProgress::Start start)
    : workers_(std::move(workers)),
      pool_(workers_->pool_),
      state_(std::make_shared<IterationState>()),
      stream_(std::move(start.stream)),
      seeds_(start.seeds),
      next_number_(start.first_batch) {
  state_->storage = std::move(storage);
  state_->slots.resize(workers_->capacity());
  for (std::size_t slot = 0; slot < state_->slots.size(); ++slot) request(slot);
}

WorkerIteration::~WorkerIteration() {
  const MutexLock lock(pool_->mutex);
  std::erase_if(pool_->jobs, [this](const LoadJob& job) { return job.iteration == state_; });
  state_->loop_waits = true;
  // Only the oldest batch counts: the others may wait for it, in the turns of an iterable dataset.
  const auto stuck = [this]() LOCKSTEP_REQUIRES(pool_->mutex) {
    const BatchSlot* oldest = nullptr;
    for (const auto& slot : state_->slots) {
      if (slot.state != BatchSlot::State::loading) continue;
      if (oldest == nullptr || slot.number < oldest->number) oldest = &slot;
    }
    return oldest != nullptr && pool_->overdue(pool_->workers[static_cast<std::size_t>(oldest->worker)]);
  };
  const auto& timeout = pool_->options.timeout;
  while (state_->loading > 0 && !stuck()) {
    if (!timeout) {
      state_->changed.wait(pool_->mutex);
    } else {
      state_->changed.wait_for(pool_->mutex, timeout->milliseconds());
    }
  }
  if (state_->loading > 0) pool_->stuck = true;
}

void WorkerIteration::request(std::size_t slot) {
  if (!stream_) return;
  at::Tensor indices;
  try {
    indices = stream_->next();
  } catch (...) {
    stream_error_ = std::current_exception();
  }
  if (!indices.defined()) {
    stream_.reset();
    return;
  }
  outstanding_.push_back(slot);
  {
    const MutexLock lock(pool_->mutex);
    state_->slots[slot] = {.state = BatchSlot::State::queued,
                           .number = next_number_,
                           .seed = seeds_.seed_of(next_number_),
                           .indices = std::move(indices)};
    pool_->jobs.push_back({state_, slot});
  }
  ++next_number_;
  pool_->work.notify_one();
}

// The position in outstanding_ of the next batch, if it is done. Called with the lock held.
std::optional<std::size_t> WorkerIteration::find_done() const {
  const auto is_done = [this](std::size_t slot) {
    return state_->slots[slot].state == BatchSlot::State::done;
  };
  const auto last = pool_->options.in_order ? outstanding_.begin() + 1 : outstanding_.end();
  const auto found = std::find_if(outstanding_.begin(), last, is_done);
  if (found == last) return std::nullopt;
  return static_cast<std::size_t>(found - outstanding_.begin());
}

// Waits for the next batch and returns its position in outstanding_.
std::size_t WorkerIteration::wait() {
  const MutexLock lock(pool_->mutex);
  const auto& timeout = pool_->options.timeout;
  std::optional<std::size_t> position;
  const auto is_there = [&] { return (position = find_done()).has_value(); };
  state_->loop_waits = true;
  if (!timeout) {
    state_->changed.wait(pool_->mutex, is_there);
  } else if (!state_->changed.wait_for(pool_->mutex, timeout->milliseconds(), is_there)) {
    pool_->stuck = true;
    state_->loop_waits = false;
    throw TimeoutError(timeout_text(*pool_, state_->slots[outstanding_.front()]));
  }
  state_->loop_waits = false;
  return *position;
}

std::optional<WorkerIteration::Loaded> WorkerIteration::next() {
  if (outstanding_.empty()) {
    if (stream_error_) std::rethrow_exception(std::exchange(stream_error_, nullptr));
    return std::nullopt;
  }
  const auto position = wait();
  const auto slot = outstanding_[position];
  outstanding_.erase(outstanding_.begin() + static_cast<std::ptrdiff_t>(position));
  // No worker uses a slot that is done.
  auto& done = state_->slots[slot];
  Loaded loaded{.samples = done.indices.numel(), .error = std::move(done.error)};
  if (!loaded.error) state_->storage->unload(slot);
  request(slot);
  return loaded;
}

bool WorkerIteration::next_is_ready() const {
  if (outstanding_.empty()) return false;
  const MutexLock lock(pool_->mutex);
  const auto position = find_done();
  return position && !state_->slots[outstanding_[*position]].error;
}

}  // namespace lockstep::data
