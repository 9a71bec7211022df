// SPDX-License-Identifier: BSD-3-Clause
#include <dlfcn.h>
#include <pthread.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/worker_info.h>
#include <lockstep/device/device.h>

#include "data/random_draw.h"
#include "data/worker_board.h"
#include "data/worker_error.h"
#include "device/thread_generator.h"

namespace lockstep::data {
namespace {

std::optional<WorkerInfo>& own_info() {
  thread_local std::optional<WorkerInfo> info;
  return info;
}

// Workers are as many as there are cores to load on: each does its work alone. LibTorch's own setter would
// also change what threads that begin later are given, so this asks the OpenMP library that LibTorch has
// loaded.
void use_one_intra_op_thread() {
  at::get_num_threads();  // sets this thread's number, once
  using Set = void (*)(int);
  static const auto set = reinterpret_cast<Set>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(1);
}

void seed_generator_of_worker(at::Generator& generator, std::uint64_t seed) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

class Worker {
 public:
  Worker(WorkerBoard& board, int id)
      : board_(board),
        id_(id),
        generator_(seeded_generator(static_cast<std::int64_t>(board.info.seed) + id)) {}

  void run() {
    const device::ThreadGenerator random(generator_);
    begin();
    std::unique_lock lock(board_.mutex);
    status().busy = false;
    while (true) {
      board_.work.wait(lock, [this] { return board_.ending || !board_.jobs.empty(); });
      if (board_.ending) break;
      const auto job = std::move(board_.jobs.front());
      board_.jobs.pop_front();
      load(job, lock);
    }
  }

 private:
  WorkerStatus& status() { return board_.workers[static_cast<std::size_t>(id_)]; }

  void begin() {
    ::pthread_setname_np(::pthread_self(), "ls_data_worker");
    use_one_intra_op_thread();
    if (board_.world) set_thread_world(board_.world);
    if (board_.options.device)
      set_device(*board_.options.device);  // where get_batch() puts tensors of its own
    own_info() = board_.info;
    own_info()->id = id_;
    own_info()->seed += static_cast<std::uint64_t>(id_);
    try {
      if (board_.options.worker_init_fn) board_.options.worker_init_fn(id_);
    } catch (...) {
      init_error_ =
          described_error(std::current_exception(), fmt::format("worker_init_fn of worker {}", id_));
    }
  }

  // Called, and returns, with the lock.
  void load(const WorkerJob& job, std::unique_lock<std::mutex>& lock) {
    auto& pass = *job.pass;
    auto& entry = pass.entries[job.slot];
    entry.state = SlotEntry::State::loading;
    entry.worker = id_;
    ++pass.loading;
    status().busy = true;
    status().since = WorkerClock::now();
    lock.unlock();
    auto error = try_to_fill(*pass.slots, job.slot, entry);
    lock.lock();
    status().busy = false;
    --pass.loading;
    entry.error = std::move(error);
    entry.state = SlotEntry::State::done;
    if (pass.waits) pass.changed.notify_one();
  }

  std::exception_ptr try_to_fill(BatchSlots& slots, std::size_t slot, const SlotEntry& entry) {
    if (init_error_) return init_error_;
    own_info()->batch_seed = entry.seed;
    seed_generator_of_worker(generator_, entry.seed);
    try {
      slots.fill(slot, entry.indices);
      return nullptr;
    } catch (...) {
      return described_error(
          std::current_exception(),
          fmt::format("DataLoader worker thread {}, at batch {} of the pass", id_, entry.number));
    }
  }

  WorkerBoard& board_;
  int id_;
  at::Generator generator_;
  std::exception_ptr init_error_{};
};

}  // namespace

std::optional<WorkerInfo> get_worker_info() { return own_info(); }

const void* WorkerInfo::dataset_of(const std::type_info& type) const {
  if (dataset_type == nullptr || *dataset_type != type) {
    throw ArgumentError(fmt::format("WorkerInfo: the loader's dataset is a {}, not a {}",
                                    dataset_type == nullptr ? "nothing" : type_text(*dataset_type),
                                    type_text(type)));
  }
  return dataset_address;
}

void run_worker(const std::shared_ptr<WorkerBoard>& board, int id) {
  Worker(*board, id).run();
  {
    const std::lock_guard lock(board->mutex);
    board->workers[static_cast<std::size_t>(id)].ended = true;
  }
  board->ended.notify_all();
}

}  // namespace lockstep::data
