// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/loader_position.h>
#include <lockstep/data/sampler.h>
#include <lockstep/device/pytree.h>
#include <lockstep/device/transfer.h>

namespace lockstep::data {

/// The loaded batches of one pass over a loader. Hides the type of a batch from the workers.
class BatchStorage {
 public:
  virtual ~BatchStorage() = default;
  /// Loads a batch into a slot. Workers call it concurrently, for different slots.
  virtual void load(std::size_t slot, const at::Tensor& indices) = 0;
  /// Moves the batch out of a slot, for the loop.
  virtual void unload(std::size_t slot) = 0;
};

struct WorkerPool;
struct IterationState;

/// The threads that load batches for a loader. The destructor joins them. With LoaderOptions::timeout, it
/// abandons a thread whose get_batch() exceeds the timeout, and logs a warning.
class LoaderWorkers {
 public:
  /// `info`: the information about worker 0.
  LoaderWorkers(const LoaderOptions& options, const WorkerInfo& info);
  ~LoaderWorkers();
  LoaderWorkers(const LoaderWorkers&) = delete;
  LoaderWorkers& operator=(const LoaderWorkers&) = delete;

  /// Number of batches that a pass may prefetch.
  std::size_t capacity() const;
  /// Whether a worker has exceeded the timeout. The next pass then needs new workers.
  bool stuck() const;

 private:
  friend class WorkerIteration;
  void end() noexcept;

  std::shared_ptr<WorkerPool> pool_;
  std::vector<std::thread> threads_;
};

/// One pass over batches that workers load ahead of the loop. Only the loop's thread uses it.
class WorkerIteration {
 public:
  /// Queues the first batches.
  WorkerIteration(std::shared_ptr<LoaderWorkers> workers, std::shared_ptr<BatchStorage> storage,
                  LoaderProgress::Start start);
  /// Waits until no worker loads a batch of this pass or a worker exceeds the timeout.
  ~WorkerIteration();
  WorkerIteration(const WorkerIteration&) = delete;
  WorkerIteration& operator=(const WorkerIteration&) = delete;

  struct Loaded {
    std::int64_t samples = 0;
    std::exception_ptr error{};  ///< get_batch()'s exception, with the worker's number; no batch was unloaded
  };
  /// Waits for the next batch and unloads it; nullopt at the end. Throws TimeoutError naming the worker and
  /// the indices. Rethrows exceptions of the sampler.
  std::optional<Loaded> next();
  /// Whether next() would return a batch without waiting.
  bool next_is_ready() const;

 private:
  std::optional<std::size_t> find_done() const;
  std::size_t wait();
  void request(std::size_t slot);

  std::shared_ptr<LoaderWorkers> workers_;
  std::shared_ptr<WorkerPool> pool_;
  std::shared_ptr<IterationState> state_;
  std::unique_ptr<BatchStream> stream_;
  BatchSeeds seeds_;
  std::int64_t next_number_;
  std::vector<std::size_t> outstanding_;  // slots, in the order of their batches
  std::exception_ptr stream_error_;
};

template <typename BatchType>
struct LoadedBatch {
  BatchType batch;
  std::optional<c10::Event> ready{};  ///< for batches on a device: see record_ready_event()
};

/// How a pass loads its batches.
struct BatchLoading {
  bool pin = false;
  std::optional<SampleSeeds> seeds{};  ///< with LoaderOptions::augmentation_seed
};

/// Calls the dataset's get_batch(), then pins the batch if asked.
template <BatchDataset Dataset>
LoadedBatch<BatchOf<Dataset>> load_batch(const Dataset& dataset, const at::Tensor& indices,
                                         const BatchLoading& loading) {
  const SampleSeedsScope scope(loading.seeds);
  LoadedBatch<BatchOf<Dataset>> loaded{.batch = dataset.get_batch(indices)};
  if constexpr (PyTree<BatchOf<Dataset>>) {
    if (loading.pin) visit_tensors(loaded.batch, [](at::Tensor& tensor) { tensor = pin_memory(tensor); });
  }
  return loaded;
}

template <BatchDataset Dataset>
class DatasetBatchStorage : public BatchStorage {
 public:
  using Loaded = LoadedBatch<BatchOf<Dataset>>;

  DatasetBatchStorage(std::shared_ptr<const Dataset> dataset, std::size_t slots, BatchLoading loading)
      : dataset_(std::move(dataset)), slots_(slots), loading_(loading) {}

  void load(std::size_t slot, const at::Tensor& indices) override {
    auto loaded = load_batch(*dataset_, indices, loading_);
    if constexpr (PyTree<BatchOf<Dataset>>) loaded.ready = record_ready_event(loaded.batch);
    slots_[slot].emplace(std::move(loaded));
  }
  void unload(std::size_t slot) override { unloaded_.emplace(*std::exchange(slots_[slot], std::nullopt)); }
  /// The batch unloaded last.
  Loaded take() { return *std::exchange(unloaded_, std::nullopt); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<std::optional<Loaded>> slots_;
  std::optional<Loaded> unloaded_{};
  BatchLoading loading_;
};

/// The parts of a loader that one pass uses.
template <BatchDataset Dataset>
struct IterationSetup {
  std::shared_ptr<const Dataset> dataset;
  std::int64_t shares = 1;  ///< BatchSource::shares()
  BatchLoading loading = {};
  std::shared_ptr<const TransferStream> transfer{};  ///< null: batches stay where they are
  std::shared_ptr<LoaderWorkers> workers{};          ///< null: the loop's thread loads each batch
};

/// One pass over a loader. For one thread.
template <BatchDataset Dataset>
class LoaderIteration {
 public:
  LoaderIteration(IterationSetup<Dataset> setup, LoaderProgress::Start start) : setup_(std::move(setup)) {
    if (!setup_.workers) {
      stream_ = std::move(start.stream);
      return;
    }
    storage_ = std::make_shared<DatasetBatchStorage<Dataset>>(setup_.dataset, setup_.workers->capacity(),
                                                              setup_.loading);
    workers_ = std::make_unique<WorkerIteration>(setup_.workers, storage_, std::move(start));
  }

  /// Frees the current batch and loads the next one; batch() is empty at the end.
  void advance(LoaderProgress& progress) {
    batch_.reset();
    auto next = staged_ ? std::exchange(staged_, std::nullopt) : load();
    if (!next) return progress.finish();
    progress.count(next->samples * setup_.shares);
    if (next->error) std::rethrow_exception(next->error);
    auto& loaded = *next->loaded;
    if constexpr (PyTree<BatchOf<Dataset>>) {
      if (loaded.ready) wait_and_record_stream(loaded.batch, *loaded.ready);
    }
    batch_.emplace(std::move(loaded.batch));
    // The next batch is copied to the device while the step runs.
    if (setup_.transfer && workers_ && workers_->next_is_ready()) staged_ = load();
  }
  std::optional<BatchOf<Dataset>>& batch() { return batch_; }

 private:
  using Loaded = LoadedBatch<BatchOf<Dataset>>;
  struct Next {
    std::int64_t samples = 0;
    std::exception_ptr error{};
    std::optional<Loaded> loaded{};
  };

  std::optional<Next> load() { return workers_ ? load_from_workers() : load_here(); }

  std::optional<Next> load_from_workers() {
    auto done = workers_->next();
    if (!done) return std::nullopt;
    Next next{.samples = done->samples, .error = std::move(done->error)};
    if (!next.error) send(next.loaded.emplace(storage_->take()));
    return next;
  }

  std::optional<Next> load_here() {
    const at::Tensor indices = stream_->next();
    if (!indices.defined()) return std::nullopt;
    Next next{.samples = indices.numel()};
    try {
      send(next.loaded.emplace(load_batch(*setup_.dataset, indices, setup_.loading)));
    } catch (...) {
      next.error = std::current_exception();
    }
    return next;
  }

  void send(Loaded& loaded) const {
    if constexpr (PyTree<BatchOf<Dataset>>) {
      if (setup_.transfer) loaded.ready = setup_.transfer->send(loaded.batch, loaded.ready);
    }
  }

  IterationSetup<Dataset> setup_;
  std::unique_ptr<BatchStream> stream_{};                    // without workers
  std::shared_ptr<DatasetBatchStorage<Dataset>> storage_{};  // with workers
  std::unique_ptr<WorkerIteration> workers_{};
  std::optional<BatchOf<Dataset>> batch_{};
  std::optional<Next> staged_{};
};

}  // namespace lockstep::data
