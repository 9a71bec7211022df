// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <source_location>
#include <typeinfo>
#include <utility>

#include <lockstep/base/world.h>
#include <lockstep/data/collate.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/detail/loader_iteration.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/sampler.h>

namespace lockstep {
class CallerPlace;
}

namespace lockstep::data {

class LoaderBase;

/// The sampler of a loader, which must outlive this. set_epoch() is that of the loader, so that positions have the
/// epoch, too.
class LoaderSampler {
 public:
  LoaderSampler(LoaderBase& loader, const Sampler& sampler) : loader_(&loader), sampler_(&sampler) {}
  /// LoaderBase::set_epoch().
  void set_epoch(std::int64_t epoch) const;
  /// Number of indices in one pass.
  std::int64_t size() const { return sampler_->size(); }
  /// One whole pass as an int64 tensor of shape [size()].
  at::Tensor indices() const { return sampler_->indices(); }
  operator const Sampler&() const { return *sampler_; }  // NOLINT: implicit by design

 private:
  LoaderBase* loader_;
  const Sampler* sampler_;
};

/// The part of a loader that does not depend on the dataset's type.
class LoaderBase {
 public:
  /// Throws ArgumentError as DataLoader does. `dataset_size`: nullopt for an iterable dataset.
  /// `is_pytree`: whether `batch_type` is a PyTree.
  LoaderBase(std::optional<std::int64_t> dataset_size, const DataLoaderOptions& options,
             const std::type_info& batch_type, bool is_pytree,
             std::source_location where = std::source_location::current());

  /// Number of batches per pass, on this rank. Throws ArgumentError for an iterable dataset. PyTorch:
  /// `len(loader)`.
  std::int64_t size() const { return batch_sampler_->size(); }
  /// Samples of a batch on this rank, of the options or of a BatchSampler. Throws ArgumentError if batch_sampler
  /// is another source of batches. PyTorch: the attribute of this name, as the following ones.
  std::int64_t batch_size() const;
  /// Whether a smaller last batch is dropped. Throws ArgumentError as batch_size().
  bool drop_last() const;
  /// The order of the samples: `loader.sampler().set_epoch(epoch)` is set_epoch() of the loader. Throws
  /// ArgumentError as batch_size(), and for an iterable dataset.
  LoaderSampler sampler();
  /// The threads that load batches.
  int num_workers() const { return options_.num_workers; }
  /// Whether batches are copied to pinned memory.
  bool pin_memory() const { return pin_memory_; }
  /// Sets the epoch, which determines the order of a shuffle across ranks. Call it before each epoch. After
  /// seek(), an epoch other than the position's starts at its beginning. PyTorch:
  /// `loader.sampler.set_epoch(epoch)`.
  void set_epoch(std::int64_t epoch);

  /// The position of the loader, for a checkpoint. Within a pass the current batch counts as done; prefetched
  /// batches do not count. A pass that the loop left early can continue. Throws ArgumentError within a pass
  /// with in_order = false. PyTorch: torchdata's `StatefulDataLoader.state_dict()`.
  LoaderPosition position(std::source_location where = std::source_location::current()) const;
  /// Makes the next begin() continue at `position`, in the middle of an epoch too: with the same samples as
  /// without the interruption, for any number of workers. With another number of ranks, the ranks share the
  /// remaining samples. LibTorch's default generator and generators of user-defined samplers are not
  /// restored; save them separately. PyTorch: `load_state_dict()`.
  void seek(const LoaderPosition& position, std::source_location where = std::source_location::current());
  /// Throws ArgumentError, which says why, unless the ranks that are left can share out the rest of a pass after a loss:
  /// the samples are those of a dataset with size(), and a DistributedSampler without `num_replicas` and `rank`, such as
  /// the loader's own, shares them. elastic::run() calls it under `lockstep run --on-loss shrink`. Not in PyTorch.
  void require_can_shrink() const;
  /// Whether seek() has led into a pass that another number of ranks has begun, so that it does not have size()
  /// batches.
  bool continues_pass_of_other_ranks() const;
  /// The source of the batches' indices.
  const std::shared_ptr<BatchSource>& batch_sampler() const { return batch_sampler_; }

 protected:
  LoaderProgress& progress() { return progress_; }
  BatchLoading loading(const BatchSeeds& pass) const;
  PassStart pass_start(const LoaderProgress::Start& start) const;
  const std::shared_ptr<const TransferStream>& transfer() const { return transfer_; }
  /// The threads for a pass; null without workers.
  std::shared_ptr<LoaderWorkers> workers(const LoaderProgress::Start& start, const void* dataset,
                                         const std::type_info& type);

 private:
  const BatchSampler& own_batches(const char* call) const;
  LoaderBase(const CallerPlace& place, std::optional<std::int64_t> dataset_size,
             const DataLoaderOptions& options, const std::type_info& batch_type, bool is_pytree);

  DataLoaderOptions options_;
  std::source_location where_;  // of the constructor: errors of passes name it
  std::shared_ptr<BatchSource> batch_sampler_;
  std::optional<World> made_in_;  // whose ranks share the samples
  LoaderProgress progress_;
  bool pin_memory_;
  std::shared_ptr<const TransferStream> transfer_;
  std::shared_ptr<LoaderWorkers> persistent_workers_{};
};

/// Yields a dataset's batches, in a run of several ranks those of this rank's share of the samples.
///
///     DataLoader loader(dataset, {.batch_size = 128, .shuffle = true, .num_workers = 2});
///     for (auto& [images, labels] : loader) train(images, labels);
///
/// Each begin() starts a pass; do not move the loader during a pass. For one thread. PyTorch:
/// `torch.utils.data.DataLoader`, where each rank reads all samples without a DistributedSampler, as here with
/// `{.distributed = false}`, for example for an evaluation on rank 0 alone. The workers are threads.
///
/// With workers, random operators on CPU tensors in get_batch() use a seed derived from the base seed of the
/// pass and the batch number, so the results do not depend on the number of workers or on timing. An
/// exception of get_batch() is rethrown at its batch, with its type, and names the worker.
template <LoadableDataset Dataset>
class DataLoader : public LoaderBase {
 public:
  /// The result of get_batch() or collate() of the dataset.
  using BatchType = typename DatasetPass<Dataset>::BatchType;
  class Iterator;

  /// Throws ArgumentError as make_batch_source() does, for options that need workers without workers, for a
  /// device that does not exist, and for pinning batches of a type that is not a PyTree. An iterable dataset
  /// excludes shuffle, sampler, batch_sampler and seed.
  explicit DataLoader(Dataset dataset, const DataLoaderOptions& options = {},
                      std::source_location where = std::source_location::current())
      : LoaderBase(size_of(dataset), options, typeid(BatchType), PyTree<BatchType>, where),
        dataset_(std::make_shared<Dataset>(std::move(dataset))) {}
  /// With the first options in PyTorch's order.
  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  DataLoader(Dataset dataset, Number batch_size, std::source_location where = std::source_location::current())
      : DataLoader(std::move(dataset), DataLoaderOptions{.batch_size = static_cast<std::int64_t>(batch_size)},
                   where) {}
  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  DataLoader(Dataset dataset, Number batch_size, std::same_as<bool> auto shuffle,
             std::source_location where = std::source_location::current())
      : DataLoader(std::move(dataset),
                   DataLoaderOptions{.batch_size = static_cast<std::int64_t>(batch_size), .shuffle = shuffle},
                   where) {}

  /// Begins a pass.
  Iterator begin() { return Iterator(*this); }
  /// The end of a pass.
  std::default_sentinel_t end() const { return {}; }
  /// The dataset that the loader reads.
  const Dataset& dataset() const { return *dataset_; }

 private:
  static std::optional<std::int64_t> size_of([[maybe_unused]] const Dataset& dataset) {
    if constexpr (MapDataset<Dataset>) {
      return size_of_dataset(dataset);
    } else {
      return std::nullopt;
    }
  }

  LoaderIteration<Dataset> start_iteration() {
    auto start = progress().start(*batch_sampler());
    return {{.pass = std::make_shared<DatasetPass<Dataset>>(dataset_, pass_start(start)),
             .shares = batch_sampler()->shares(),
             .loading = loading(start.seeds),
             .transfer = transfer(),
             .workers = workers(start, dataset_.get(), typeid(Dataset))},
            std::move(start)};
  }

  std::shared_ptr<const Dataset>
      dataset_;  // shared with workers that outlive the loader because they are stuck
};

/// One pass; a move-only input iterator. It owns the batch until it advances. Each batch is new, so tensors
/// copied out of it stay valid.
template <LoadableDataset Dataset>
class DataLoader<Dataset>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = BatchType;
  using difference_type = std::ptrdiff_t;

  BatchType& operator*() const { return *iteration_->batch(); }
  BatchType* operator->() const { return &*iteration_->batch(); }
  Iterator& operator++() {
    iteration_->advance(loader_->progress());
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !iteration_->batch(); }

 private:
  friend class DataLoader;
  explicit Iterator(DataLoader& loader)
      : loader_(&loader), iteration_(new LoaderIteration<Dataset>(loader.start_iteration())) {
    ++*this;
  }

  DataLoader* loader_;
  std::unique_ptr<LoaderIteration<Dataset>> iteration_;
};

}  // namespace lockstep::data

/// PyTorch's name: `utils::data::DataLoader`.
namespace lockstep::utils {
namespace data = ::lockstep::data;  ///< the namespace
}
