// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <source_location>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <lockstep/base/error.h>
#include <lockstep/base/mutex.h>
#include <lockstep/data/collate.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/sampler.h>
#include <lockstep/device/device.h>
#include <lockstep/device/pytree.h>

namespace lockstep {
struct RankProgress;
}

namespace lockstep::data {

/// Where a pass over an iterable dataset begins.
struct PassStart {
  StreamShare share = {};
  std::int64_t skip = 0;  ///< samples of the share that an interrupted pass has yielded
  bool drop_last = false;
  std::source_location where = {};  ///< of the loader
};

/// One pass over a dataset: reads its batches, for a loader and its workers.
template <typename Dataset>
class DatasetPass;

template <MapDataset Dataset>
class DatasetPass<Dataset> {
 public:
  using BatchType = BatchOf<Dataset>;

  DatasetPass(std::shared_ptr<const Dataset> dataset, const PassStart& start)
      : dataset_(std::move(dataset)), where_(start.where) {}

  std::optional<BatchType> read(const at::Tensor& indices) const {
    return get_batch_at(*dataset_, indices, where_);
  }
  void skip(const at::Tensor& /*indices*/) const {}

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::source_location where_;
};

/// The type of an iterable dataset's samples.
template <IterableDataset Dataset>
using SampleOf =
    std::remove_cvref_t<decltype(*std::declval<const Dataset&>().iter(std::declval<StreamShare>())->next())>;

// Note [Turns of a stream]
//
// Each call names the positions of its samples in the stream; it waits until all samples before them are
// read, so the stream is read in order by whichever worker has the turn. A call always ends its turn, even if
// the stream throws, because the workers after it wait for that.
template <IterableDataset Dataset>
class DatasetPass<Dataset> {
 public:
  using BatchType =
      decltype(collate(std::declval<const Dataset&>(), std::declval<std::vector<SampleOf<Dataset>>>()));

  DatasetPass(std::shared_ptr<const Dataset> dataset, const PassStart& start)
      : dataset_(std::move(dataset)),
        start_(start),
        next_(start.skip),
        stream_(dataset_->iter(start.share)) {}

  /// The batch of the samples at these positions; shorter, or nullopt, at the end of the stream.
  std::optional<BatchType> read(const at::Tensor& positions) {
    auto samples = read_samples(positions);
    if (samples.empty()) return std::nullopt;
    return collate(*dataset_, std::move(samples));
  }
  /// Ends the stream at these positions, for a worker that cannot read.
  void skip(const at::Tensor& positions) {
    const StreamTurn turn(*this, positions);
    ended_ = true;
  }

 private:
  class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) StreamTurn {
   public:
    StreamTurn(DatasetPass& pass, const at::Tensor& positions)
        LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(pass.mutex_))
        : pass_(pass), lock_(pass.mutex_), end_(positions[0].item<std::int64_t>() + positions.size(0)) {
      pass_.turn_ended_.wait(pass_.mutex_, [&]() LOCKSTEP_REQUIRES(pass_.mutex_) {
        return pass_.next_ == end_ - positions.size(0);
      });
    }
    ~StreamTurn() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
      pass_.next_ = end_;
      pass_.turn_ended_.notify_all();
    }
    StreamTurn(const StreamTurn&) = delete;
    StreamTurn& operator=(const StreamTurn&) = delete;

   private:
    DatasetPass& pass_;
    MutexLock lock_;
    std::int64_t end_;
  };

  std::vector<SampleOf<Dataset>> read_samples(const at::Tensor& positions) {
    const StreamTurn turn(*this, positions);
    std::vector<SampleOf<Dataset>> samples;
    if (ended_) return samples;
    ended_ = true;  // also after an exception of the stream, as Python's generators end
    skip_to_start();
    while (static_cast<std::int64_t>(samples.size()) < positions.size(0)) {
      auto sample = stream_->next();
      if (!sample.has_value()) {
        if (start_.drop_last) samples.clear();
        return samples;
      }
      samples.push_back(*std::move(sample));
    }
    ended_ = false;
    return samples;
  }

  void skip_to_start() LOCKSTEP_REQUIRES(mutex_) {
    const auto samples = std::exchange(start_.skip, 0);
    if constexpr (requires { stream_->skip(samples); }) {
      if (samples > 0) stream_->skip(samples);
    } else {
      for (std::int64_t i = 0; i < samples && stream_->next().has_value(); ++i) continue;
    }
  }

  std::shared_ptr<const Dataset> dataset_;
  PassStart start_ LOCKSTEP_GUARDED_BY(mutex_);
  Mutex mutex_{};
  Condition turn_ended_{};
  std::int64_t next_ LOCKSTEP_GUARDED_BY(mutex_);  // the position of the next sample
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  decltype(std::declval<const Dataset&>().iter(std::declval<StreamShare>())) stream_
      LOCKSTEP_GUARDED_BY(mutex_);
};

/// The loaded batches of one pass over a loader. Hides the type of a batch from the workers.
class BatchStorage {
 public:
  virtual ~BatchStorage() = default;
  /// Loads a batch into a slot. Workers call it concurrently, for different slots.
  virtual void load(std::size_t slot, const at::Tensor& indices) = 0;
  /// Called in place of load() by a worker that cannot load batches.
  virtual void skip(const at::Tensor& indices) = 0;
  /// Moves the batch out of a slot, for the loop.
  virtual void unload(std::size_t slot) = 0;
};

struct WorkerPool;
struct IterationState;

/// The threads that load batches for a loader. The destructor joins them. With DataLoaderOptions::timeout, it
/// abandons a thread whose get_batch() exceeds the timeout, and logs a warning.
class LoaderWorkers {
 public:
  /// `info`: the information about worker 0.
  LoaderWorkers(const DataLoaderOptions& options, const WorkerInfo& info);
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
  /// Queues no further batches; next() returns those that are queued.
  void stop() { stream_.reset(); }

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
  std::optional<SampleSeeds> seeds{};  ///< with DataLoaderOptions::augmentation_seed
};

/// Reads a batch, then pins it if asked; nullopt at the end of an iterable dataset.
template <typename Dataset>
auto load_batch(DatasetPass<Dataset>& pass, const at::Tensor& indices, const BatchLoading& loading) {
  using BatchType = typename DatasetPass<Dataset>::BatchType;
  const SampleSeedsScope scope(loading.seeds);
  std::optional<LoadedBatch<BatchType>> loaded;
  auto batch = pass.read(indices);
  if (!batch) return loaded;
  loaded.emplace(LoadedBatch<BatchType>{.batch = *std::move(batch)});
  if constexpr (PyTree<BatchType>) {
    if (loading.pin) visit_tensors(loaded->batch, [](at::Tensor& tensor) { tensor = pin_memory(tensor); });
  }
  return loaded;
}

template <typename Dataset>
class DatasetBatchStorage : public BatchStorage {
 public:
  using BatchType = typename DatasetPass<Dataset>::BatchType;
  using Loaded = LoadedBatch<BatchType>;

  DatasetBatchStorage(std::shared_ptr<DatasetPass<Dataset>> pass, std::size_t slots, BatchLoading loading)
      : pass_(std::move(pass)), slots_(slots), loading_(loading) {}

  void load(std::size_t slot, const at::Tensor& indices) override {
    slots_[slot] = load_batch(*pass_, indices, loading_);
    if constexpr (PyTree<BatchType>) {
      if (slots_[slot]) slots_[slot]->ready = record_ready_event(slots_[slot]->batch);
    }
  }
  void skip(const at::Tensor& indices) override { pass_->skip(indices); }
  void unload(std::size_t slot) override { unloaded_ = std::exchange(slots_[slot], std::nullopt); }
  /// The batch unloaded last; nullopt after the end of an iterable dataset.
  std::optional<Loaded> take() { return std::exchange(unloaded_, std::nullopt); }

 private:
  std::shared_ptr<DatasetPass<Dataset>> pass_;
  std::vector<std::optional<Loaded>> slots_;
  std::optional<Loaded> unloaded_{};
  BatchLoading loading_;
};

/// The parts of a loader that one pass uses.
template <typename Dataset>
struct IterationSetup {
  std::shared_ptr<DatasetPass<Dataset>> pass;
  std::int64_t shares = 1;  ///< BatchSource::shares()
  BatchLoading loading = {};
  std::shared_ptr<const TransferStream> transfer{};  ///< null: batches stay where they are
  std::shared_ptr<LoaderWorkers> workers{};          ///< null: the loop's thread loads each batch
};

/// Publishes that the thread that trains waits for a batch. A stack variable.
class BatchWait {
 public:
  BatchWait() noexcept;
  ~BatchWait();
  BatchWait(const BatchWait&) = delete;
  BatchWait& operator=(const BatchWait&) = delete;

  /// The batch has `samples`.
  void count(std::int64_t samples) const noexcept;

 private:
  RankProgress* progress_;  // nullptr: of another thread, or of no rank
};

/// One pass over a loader. For one thread.
template <typename Dataset>
class LoaderIteration {
 public:
  using BatchType = typename DatasetPass<Dataset>::BatchType;

  LoaderIteration(IterationSetup<Dataset> setup, LoaderProgress::Start start) : setup_(std::move(setup)) {
    if (!setup_.workers) {
      stream_ = std::move(start.stream);
      return;
    }
    storage_ = std::make_shared<DatasetBatchStorage<Dataset>>(setup_.pass, setup_.workers->capacity(),
                                                              setup_.loading);
    workers_ = std::make_unique<WorkerIteration>(setup_.workers, storage_, std::move(start));
  }

  /// Frees the current batch and loads the next one; batch() is empty at the end.
  void advance(LoaderProgress& progress) {
    const BatchWait wait;
    batch_.reset();
    auto next = staged_ ? std::exchange(staged_, std::nullopt) : load();
    if (!next) return progress.finish();
    progress.count(next->samples * setup_.shares);
    wait.count(next->samples);
    if (next->error) std::rethrow_exception(next->error);
    auto& loaded = *next->loaded;
    if constexpr (PyTree<BatchType>) {
      if (loaded.ready) wait_and_record_stream(loaded.batch, *loaded.ready);
    }
    batch_.emplace(std::move(loaded.batch));
    // The next batch is copied to the device while the step runs.
    if (setup_.transfer && workers_ && workers_->next_is_ready()) staged_ = load();
  }
  std::optional<BatchType>& batch() { return batch_; }

 private:
  using Loaded = LoadedBatch<BatchType>;
  struct Next {
    std::int64_t samples = 0;
    std::exception_ptr error{};
    std::optional<Loaded> loaded{};
  };

  std::optional<Next> load() { return workers_ ? load_from_workers() : load_here(); }

  std::optional<Next> load_from_workers() {
    while (auto done = workers_->next()) {
      Next next{.samples = done->samples, .error = std::move(done->error)};
      if (next.error) return next;
      if (send_if_read(next, storage_->take())) return next;
      workers_->stop();  // out of order, batches before the end may be queued
    }
    return std::nullopt;
  }

  std::optional<Next> load_here() {
    const at::Tensor indices = stream_->next();
    if (!indices.defined()) return std::nullopt;
    Next next{.samples = indices.numel()};
    try {
      if (!send_if_read(next, load_batch(*setup_.pass, indices, setup_.loading))) return std::nullopt;
    } catch (...) {
      next.error = std::current_exception();
    }
    return next;
  }

  // False at the end of an iterable dataset.
  bool send_if_read(Next& next, std::optional<Loaded> loaded) const {
    if (!loaded) return false;
    if constexpr (PyTree<BatchType>) {
      if (setup_.transfer) loaded->ready = setup_.transfer->send(loaded->batch, loaded->ready);
    }
    next.loaded = std::move(loaded);
    return true;
  }

  IterationSetup<Dataset> setup_;
  std::unique_ptr<BatchStream> stream_{};                    // without workers
  std::shared_ptr<DatasetBatchStorage<Dataset>> storage_{};  // with workers
  std::unique_ptr<WorkerIteration> workers_{};
  std::optional<BatchType> batch_{};
  std::optional<Next> staged_{};
};

}  // namespace lockstep::data
