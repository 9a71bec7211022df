// SPDX-License-Identifier: BSD-3-Clause
#include "data/worker_pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdexcept>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <lockstep/base/log.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/device/device.h>

#include "base/process_state.h"
#include "base/throw_error.h"
#include "device/generators.h"
#include "intercept/thread_defaults.h"

namespace lockstep::data {
namespace {

std::optional<WorkerInfo>& thread_worker_info() {
  thread_local std::optional<WorkerInfo> info;
  return info;
}

// One thread a worker, as in PyTorch. at::set_num_threads() would also change the default of threads that
// start later, so this calls LibTorch's OpenMP library.
void use_one_intra_op_thread() {
  at::get_num_threads();  // LibTorch initializes the thread's count once; do it before the change
  using Set = void (*)(int);
  static const auto set = reinterpret_cast<Set>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(1);
}

// Replaces the message through assignment from the standard class, which keeps the type and members of
// derived classes.
template <typename Standard>
void replace_message(Standard& error, const std::string& text) {
  error = Standard(text);
  if (std::string_view(error.what()) != text) log(LogLevel::error, text);
}

// Prefixes the message of `thrown` with "Caught <type> in <where>: " and returns the same object. Logs the
// text when the message cannot be changed.
std::exception_ptr with_context(std::exception_ptr thrown, const std::string& where) {
  const auto text = [&](const std::exception& error) {
    return fmt::format("Caught {} in {}: {}", type_name(typeid(error)), where, error.what());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (c10::Error& error) {
    error.add_context(fmt::format("Caught {} in {}", type_name(typeid(error)), where));
  } catch (std::runtime_error& error) {
    replace_message(error, text(error));
  } catch (std::logic_error& error) {
    replace_message(error, text(error));
  } catch (const std::exception& error) {
    log(LogLevel::error, text(error));
  } catch (...) {
    log(LogLevel::error, fmt::format("Caught an exception that is not a std::exception in {}", where));
  }
  return thrown;
}

class Worker {
 public:
  Worker(WorkerPool& pool, int id)
      : pool_(pool),
        id_(id),
        generator_(device::seeded_generator(pool.info.seed + static_cast<std::uint64_t>(id))) {}

  void run() {
    const intercept::ThreadGenerator random(generator_);
    prepare();
    const MutexLock lock(pool_.mutex);
    status().busy = false;
    while (true) {
      pool_.work.wait(pool_.mutex, [this]() LOCKSTEP_REQUIRES(pool_.mutex) {
        return pool_.ending || !pool_.jobs.empty();
      });
      if (pool_.ending) break;
      const auto job = std::move(pool_.jobs.front());
      pool_.jobs.pop_front();
      load(job);
    }
  }

 private:
  WorkerStatus& status() LOCKSTEP_REQUIRES(pool_.mutex) {
    return pool_.workers[static_cast<std::size_t>(id_)];
  }

  void prepare() {
    ::pthread_setname_np(::pthread_self(), "ls_data_worker");
    use_one_intra_op_thread();
    if (pool_.world) set_thread_world(pool_.world);
    if (pool_.options.device) set_device(*pool_.options.device);  // for tensors that get_batch() makes
    thread_worker_info() = pool_.info;
    thread_worker_info()->id = id_;
    thread_worker_info()->seed += static_cast<std::uint64_t>(id_);
    try {
      if (pool_.options.worker_init_fn) pool_.options.worker_init_fn(id_);
    } catch (...) {
      init_error_ = with_context(std::current_exception(), fmt::format("worker_init_fn of worker {}", id_));
    }
  }

  void load(const LoadJob& job) LOCKSTEP_REQUIRES(pool_.mutex) {
    auto& iteration = *job.iteration;
    auto& slot = iteration.slots[job.slot];
    slot.state = BatchSlot::State::loading;
    slot.worker = id_;
    ++iteration.loading;
    status().busy = true;
    status().busy_since = WorkerClock::now();
    std::exception_ptr error;
    {
      const MutexUnlock unlocked(pool_.mutex);
      error = try_load(*iteration.storage, job.slot, slot);
    }
    status().busy = false;
    --iteration.loading;
    slot.error = std::move(error);
    slot.state = BatchSlot::State::done;
    if (iteration.loop_waits) iteration.changed.notify_one();
  }

  std::exception_ptr try_load(BatchStorage& storage, std::size_t index, const BatchSlot& slot) {
    if (init_error_) {
      storage.skip(slot.indices);
      return init_error_;
    }
    thread_worker_info()->batch_seed = slot.seed;
    device::set_seed(generator_, slot.seed);
    try {
      storage.load(index, slot.indices);
      return nullptr;
    } catch (...) {
      return with_context(
          std::current_exception(),
          fmt::format("DataLoader worker thread {}, at batch {} of the pass", id_, slot.number));
    }
  }

  WorkerPool& pool_;
  int id_;
  at::Generator generator_;
  std::exception_ptr init_error_{};
};

}  // namespace

std::optional<WorkerInfo> get_worker_info() { return thread_worker_info(); }

const void* WorkerInfo::dataset_of(const std::type_info& type) const {
  if (dataset_type == nullptr || *dataset_type != type) {
    throw_error<ArgumentError>("WorkerInfo: the loader's dataset is a {}, not a {}",
                               dataset_type == nullptr ? "nothing" : type_name(*dataset_type),
                               type_name(type));
  }
  return dataset_address;
}

std::string type_name(const std::type_info& type) { return c10::demangle(type.name()); }

void run_worker(const std::shared_ptr<WorkerPool>& pool, int id) {
  Worker(*pool, id).run();
  {
    const MutexLock lock(pool->mutex);
    pool->workers[static_cast<std::size_t>(id)].ended = true;
  }
  pool->worker_ended.notify_all();
}

}  // namespace lockstep::data
