// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include <lockstep/data/batch_sampler.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/loader_pass.h>
#include <lockstep/data/loader_position.h>
#include <lockstep/data/loader_workers.h>
#include <lockstep/data/sampler.h>

namespace lockstep::data {

/// What of a loader does not depend on the type of its dataset.
class LoaderCore {
 public:
  /// Throws ArgumentError as make_loader() does. `findable`: whether tensors can be found in batches, of type
  /// `batch_type`.
  LoaderCore(std::int64_t dataset_size, const LoaderOptions& options, const std::type_info& batch_type,
             bool findable);

  /// Number of batches in a pass, on this rank. PyTorch: `len(loader)`.
  std::int64_t size() const { return batch_sampler_->size(); }
  /// Call it before each epoch, or shuffling across ranks gives the same order each time.
  /// PyTorch: `loader.sampler.set_epoch(epoch)`. After seek(): another epoch than that one starts from its
  /// front.
  void set_epoch(std::int64_t epoch);

  /// Where the loader is, for a checkpoint; within a pass, the batch in hand counts as done, and batches that
  /// workers are ahead do not. A pass that was left before its end counts as one that goes on. Throws
  /// ArgumentError in the middle of a pass with in_order = false, which no count can describe.
  /// PyTorch: torchdata's `StatefulDataLoader.state_dict()`.
  LoaderPosition position() const;
  /// The next begin() goes on where `position` is: in the middle of its epoch, sample for sample as if
  /// nothing had happened, with any number of workers; with another number of ranks, what they have left is
  /// shared among those there are. LibTorch's default generator is not touched: it has a place of its own in
  /// a checkpoint, as has a generator that the user gave to a sampler. PyTorch: `load_state_dict()`.
  void seek(const LoaderPosition& position);
  const std::shared_ptr<BatchSource>& batch_sampler() const { return batch_sampler_; }

 protected:
  LoaderProgress& progress() { return progress_; }
  bool pins() const { return pins_; }
  const std::shared_ptr<const TransferStream>& transfer() const { return transfer_; }
  /// The threads for a pass that starts with these seeds; none without workers.
  std::shared_ptr<LoaderWorkers> workers(const LoaderProgress::Start& start, const void* dataset,
                                         const std::type_info& type);

 private:
  LoaderOptions options_;
  std::shared_ptr<BatchSource> batch_sampler_;
  LoaderProgress progress_;
  bool pins_;
  std::shared_ptr<const TransferStream> transfer_;
  std::shared_ptr<LoaderWorkers> persistent_workers_{};
};

/// Yields a dataset's batches: `for (auto& [images, labels] : loader)`. PyTorch: DataLoader, with threads in
/// place of worker processes. Each begin() starts a new pass; the loader must stay where it is while a pass
/// lasts. For one thread. Leaving a pass ends its workers.
///
/// With workers, random operators on CPU tensors within get_batch() draw from a seed that the base seed of
/// the pass and the batch's number decide, so that neither the number of workers nor their pace matters; what
/// get_batch() throws comes out at its batch, of the same type, saying which worker it was.
template <BatchDataset Dataset>
class Loader : public LoaderCore {
 public:
  using BatchType = BatchOf<Dataset>;
  class Iterator;

  Loader(Dataset dataset, const LoaderOptions& options)
      : LoaderCore(static_cast<std::int64_t>(dataset.size()), options, typeid(BatchType),
                   device::Findable<BatchType>),
        dataset_(std::make_shared<const Dataset>(std::move(dataset))) {}

  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }
  const Dataset& dataset() const { return *dataset_; }

 private:
  LoaderPass<Dataset> start_pass() {
    auto start = progress().start(*batch_sampler());
    return {{.dataset = dataset_,
             .shares = batch_sampler()->shares(),
             .pins = pins(),
             .transfer = transfer(),
             .workers = workers(start, dataset_.get(), typeid(Dataset))},
            std::move(start)};
  }

  std::shared_ptr<const Dataset> dataset_;  // which a worker that is stuck may use for longer
};

/// One pass; a move-only input iterator. The batch belongs to the iterator until it advances, and is newly
/// made each time: tensors copied out of it stay as they are.
template <BatchDataset Dataset>
class Loader<Dataset>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = BatchType;
  using difference_type = std::ptrdiff_t;

  BatchType& operator*() const { return *pass_->batch(); }
  BatchType* operator->() const { return &*pass_->batch(); }
  Iterator& operator++() {
    pass_->advance(loader_->progress());
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !pass_->batch(); }

 private:
  friend class Loader;
  explicit Iterator(Loader& loader) : loader_(&loader), pass_(new LoaderPass<Dataset>(loader.start_pass())) {
    ++*this;
  }

  Loader* loader_;
  std::unique_ptr<LoaderPass<Dataset>> pass_;
};

/// `make_loader(dataset, {.batch_size = 128, .shuffle = true, .num_workers = 2})`. Throws as
/// make_batch_source() does, and ArgumentError for options that need workers and have none, for a device that
/// is not there, and for pinning batches of a type in which tensors cannot be found (see TensorVisitor).
template <BatchDataset Dataset>
Loader<Dataset> make_loader(Dataset dataset, const LoaderOptions& options = {}) {
  return Loader<Dataset>(std::move(dataset), options);
}

}  // namespace lockstep::data
