// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <lockstep/base/timeout.h>
#include <lockstep/data/sampler.h>

namespace lockstep::data {

/// Information about one worker. PyTorch: `torch.utils.data.get_worker_info()`.
struct WorkerInfo {
  int id = 0;                    ///< 0 .. num_workers-1
  int num_workers = 0;           ///< of this loader
  std::uint64_t seed = 0;        ///< for worker_init_fn(): the base seed + id
  std::uint64_t batch_seed = 0;  ///< for your own generators in get_batch(); does not depend on the worker

  /// The dataset of the loader, shared by all workers. Throws ArgumentError when it has another type.
  template <typename Dataset>
  const Dataset& dataset() const {
    return *static_cast<const Dataset*>(dataset_of(typeid(Dataset)));
  }

  const void* dataset_address = nullptr;         ///< the dataset of the loader
  const std::type_info* dataset_type = nullptr;  ///< its type

 private:
  const void* dataset_of(const std::type_info& type) const;
};

/// Information about the calling thread if it is a worker, otherwise nullopt.
std::optional<WorkerInfo> get_worker_info();

/// PyTorch's `collate_fn`. Giving one does not compile: the dataset makes its batches, see SampleDataset.
/// PyTorch's None is nullptr or std::nullopt.
struct CollateFunction {
  CollateFunction() = default;
  CollateFunction(std::nullptr_t) {}
  CollateFunction(std::nullopt_t) {}
  template <typename Function>
  CollateFunction(const Function& /*function*/) {  // NOLINT: implicit by design
    static_assert(sizeof(Function) == 0,
                  "collate_fn: write it as the dataset's member collate(std::vector<Sample>) const instead");
  }
};

/// The options of a DataLoader: PyTorch's in PyTorch's order, then Lockstep's.
struct DataLoaderOptions {
  /// Samples per batch on this rank. Default: 1.
  std::optional<std::int64_t> batch_size = {};
  /// Uses a new order in each epoch. Default: false.
  std::optional<bool> shuffle = {};
  /// The samples and their order: a sampler or a shared_ptr of one. Excludes shuffle and seed, and turns off
  /// sharding over ranks.
  SamplerPtr<Sampler> sampler = {};
  /// The batches of indices: a BatchSource or a shared_ptr of one. Excludes batch_size, shuffle, sampler, seed
  /// and drop_last.
  SamplerPtr<BatchSource> batch_sampler = {};
  /// Number of threads that load batches ahead of the loop; they call get_batch() concurrently. 0: the loop's
  /// thread loads each batch. The number does not change the batches or their order.
  int num_workers = 0;
  CollateFunction collate_fn = {};  ///< does not compile: give the dataset a member collate()
  /// Copies batches to pinned memory, for fast transfers to a device. Warns and does nothing without an
  /// accelerator.
  bool pin_memory = false;
  /// Drops a last batch that is smaller than the others. Default: false.
  std::optional<bool> drop_last = {};
  /// Maximum time to wait for a batch. Default: no limit. Needs workers.
  std::optional<Timeout> timeout = {};
  /// Each worker calls it with its number, 0 .. num_workers-1, before it loads batches.
  std::function<void(int)> worker_init_fn = {};
  /// The generator for a shuffle on one rank and for each epoch's base seed. Default: LibTorch's default CPU
  /// generator.
  std::optional<at::Generator> generator = {};
  /// Batches that each worker loads ahead; at most num_workers * prefetch_factor batches wait. Default: 2.
  /// Needs workers.
  std::optional<int> prefetch_factor = {};
  /// Keeps the workers from one pass to the next. Needs workers.
  bool persistent_workers = false;
  /// False: yields batches as soon as they are loaded, so their order may differ between runs.
  bool in_order = true;
  /// The order of epoch e is a function of seed + e, as in DistributedSampler. Used with shuffle. Default: 0
  /// with several ranks; with one rank each epoch's order comes from `generator`.
  std::optional<std::int64_t> seed = {};
  /// Copies batches to this device through pinned memory; with workers, the next batch is copied during the
  /// step. Default: batches stay where the dataset makes them. PyTorch: `batch.to(device, non_blocking=True)`
  /// in the loop.
  std::optional<c10::Device> device = {};
  /// Gives each sample a generator of its own for random transforms, seeded from this number, the epoch and
  /// the sample's index: see sample_generator(). Batches are then equal for any number of workers and ranks,
  /// and after a resume. Default: transforms draw from the worker's or LibTorch's default generator.
  std::optional<std::uint64_t> augmentation_seed = {};
  /// Gives each rank of the current world its share of the samples, padded to equal sizes by
  /// DistributedSampler; not padded for an iterable dataset. False: this rank loads all samples.
  bool distributed = true;
};

/// The batch sampler of a loader over `dataset_size` samples with `options`. It orders the samples, shards
/// them over the ranks of the current world and groups them into batches. Throws ArgumentError when the
/// dataset is empty, when batch_size is not positive, or when options contradict each other.
std::shared_ptr<BatchSource> make_batch_source(std::int64_t dataset_size, const DataLoaderOptions& options);

/// Seeds for the random transforms of single samples: see DataLoaderOptions::augmentation_seed.
struct SampleSeeds {
  std::uint64_t base = 0;   ///< DataLoaderOptions::augmentation_seed
  std::int64_t epoch = 0;   ///< of set_epoch()
  std::int64_t passes = 0;  ///< passes started in this epoch before this one

  /// splitmix64's output function f, chained: f(f(f(f(base) ^ epoch) ^ passes) ^ index).
  std::uint64_t seed_of(std::int64_t index) const;
};

/// A generator for the random transforms of sample `index`, for use in get_batch(). Has a value while a
/// loader with an augmentation_seed calls get_batch() on this thread.
std::optional<at::Generator> sample_generator(std::int64_t index);

/// While it exists, sample_generator() of this thread uses the seeds.
class SampleSeedsScope {
 public:
  explicit SampleSeedsScope(const std::optional<SampleSeeds>& seeds);
  ~SampleSeedsScope();
  SampleSeedsScope(const SampleSeedsScope&) = delete;
  SampleSeedsScope& operator=(const SampleSeedsScope&) = delete;

 private:
  std::optional<SampleSeeds> outer_;
};

/// The position of a loader between two passes or within one, for checkpoints. Prefetched batches do not
/// count.
struct LoaderPosition {
  std::int64_t epoch = 0;    ///< the epoch of set_epoch()
  std::int64_t batches = 0;  ///< yielded in this pass, on one rank; 0 between passes
  std::int64_t samples = 0;  ///< yielded in this pass, on all ranks that share the data
  at::Tensor
      pass_generator{};  ///< the generator's state at the start of the pass: uint8, undefined between passes
  at::Tensor own_generator{};  ///< the current state of DataLoaderOptions::generator; undefined without one
  std::int64_t passes = 0;     ///< passes started in this epoch before the current or next one
  /// The base seed that persistent workers keep from an earlier pass.
  std::optional<std::int64_t> base_seed{};
};

/// Seeds for loading the batches of a pass. They differ between batches, ranks, epochs and passes, and do not
/// depend on the worker.
struct BatchSeeds {
  std::uint64_t base = 0;   ///< seed of the loader
  std::int64_t epoch = 0;   ///< epoch of the pass
  std::int64_t passes = 0;  ///< passes before this one
  int rank = 0;             ///< rank of this process

  /// The seed of a batch of the pass.
  std::uint64_t seed_of(std::int64_t batch) const;
};

/// Tracks the position of a loader: counts yielded batches, and starts and resumes passes. For one thread.
class LoaderProgress {
 public:
  /// `keep_base_seed`: with persistent workers only the first pass draws a base seed, as in PyTorch.
  LoaderProgress(std::optional<at::Generator> generator, std::optional<std::int64_t> seed,
                 bool keep_base_seed)
      : generator_(std::move(generator)), seed_(seed), keep_base_seed_(keep_base_seed) {}

  /// Sets the epoch of the next pass.
  void set_epoch(std::int64_t epoch);
  /// The position after the last yielded batch.
  LoaderPosition position() const;
  /// Makes the next start() resume there. Throws DataError when a generator state is invalid.
  void seek(const LoaderPosition& position);

  /// A pass that begins.
  struct Start {
    std::unique_ptr<BatchStream> stream;  ///< indices of its batches
    BatchSeeds seeds;                     ///< seeds of its batches
    std::int64_t first_batch;             ///< the number of the stream's first batch within the pass
  };
  /// Starts a pass, or resumes the pass of seek().
  Start start(const BatchSource& source);

  /// Counts a yielded batch that has `samples` on all ranks together.
  void count(std::int64_t samples);
  /// Ends the pass.
  void finish();

 private:
  std::unique_ptr<BatchStream> begin(const BatchSource& source);
  std::unique_ptr<BatchStream> resume(const BatchSource& source, const LoaderPosition& from);
  void draw_base_seed();

  std::optional<at::Generator> generator_;
  std::optional<std::int64_t> seed_;
  bool keep_base_seed_;
  LoaderPosition position_{};
  std::optional<LoaderPosition> resume_{};
  std::int64_t passes_started_ = 0;  // in this epoch
  std::int64_t base_seed_ = 0;
  std::optional<std::int64_t> kept_base_seed_{};
};

}  // namespace lockstep::data
