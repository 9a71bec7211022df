// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/data/batch_sampler.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/loader_position.h>
#include <lockstep/data/sampler.h>

namespace lockstep::data {

/// PyTorch: the arguments of DataLoader.
struct LoaderOptions {
  std::optional<std::int64_t> batch_size = {};  ///< samples a batch, on this rank; not given: 1
  std::optional<bool> shuffle = {};             ///< a new order each epoch; not given: false
  /// Which samples, in which order; excludes shuffle and seed, and the loader then adds no sharding of its
  /// own.
  std::shared_ptr<Sampler> sampler = {};
  /// Whole batches of indices; excludes batch_size, shuffle, sampler, seed and drop_last.
  std::shared_ptr<BatchSource> batch_sampler = {};
  std::optional<bool> drop_last = {};  ///< leave out a last batch that would be smaller; not given: false
  /// The order of epoch e follows from seed + e, as DistributedSampler's does; used when shuffling. Not
  /// given: 0 when there are several ranks; on one rank each epoch's order comes from `generator`.
  std::optional<std::int64_t> seed = {};
  /// Where a shuffle on one rank, and each epoch's base seed, are drawn from. Not given: LibTorch's default
  /// CPU generator.
  std::optional<at::Generator> generator = {};
  /// When the current world has several ranks, each gets its own share, padded to the same number of samples
  /// by DistributedSampler. False: this rank sees everything.
  bool distributed = true;
};

/// The batch sampler that a loader over `dataset_size` samples uses under `options`: an order, sharded over
/// the ranks of the current world, in batches. Throws ArgumentError when the dataset is empty, when
/// batch_size is not positive, or when two options contradict each other.
std::shared_ptr<BatchSource> make_batch_source(std::int64_t dataset_size, const LoaderOptions& options);

/// Yields a dataset's batches: `for (auto& [images, labels] : loader)`. PyTorch: DataLoader(num_workers=0).
/// Each begin() starts a new pass; the loader must stay where it is while a pass lasts. For one thread.
template <BatchDataset Dataset>
class Loader {
 public:
  using BatchType = std::remove_cvref_t<decltype(std::declval<const Dataset&>().get_batch(at::Tensor()))>;
  class Iterator;

  Loader(Dataset dataset, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        batch_sampler_(make_batch_source(static_cast<std::int64_t>(dataset_.size()), options)),
        generator_(options.generator) {}

  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }
  /// Number of batches in a pass, on this rank. PyTorch: `len(loader)`.
  std::int64_t size() const { return batch_sampler_->size(); }
  /// Call it before each epoch, or shuffling across ranks gives the same order each time.
  /// PyTorch: `loader.sampler.set_epoch(epoch)`. After seek(): another epoch than that one starts from its
  /// front.
  void set_epoch(std::int64_t epoch) {
    if (resume_ && resume_->epoch != epoch) resume_.reset();
    position_.epoch = epoch;
    batch_sampler_->set_epoch(epoch);
  }

  /// Where the loader is, for a checkpoint; within a pass, the batch in hand counts as done. A pass that was
  /// left before its end counts as one that goes on. PyTorch: torchdata's `StatefulDataLoader.state_dict()`.
  LoaderPosition position() const {
    auto now = resume_ ? *resume_ : position_;
    if (generator_) now.own_generator = generator_state(generator_);
    return now;
  }
  /// The next begin() goes on where `position` is: in the middle of its epoch, sample for sample as if
  /// nothing had happened; with another number of ranks, what they have left is shared among those there are.
  /// LibTorch's default generator is not touched: it has a place of its own in a checkpoint, as has a
  /// generator that the user gave to a sampler. PyTorch: `load_state_dict()`.
  void seek(const LoaderPosition& position) {
    set_epoch(position.epoch);
    resume_.reset();
    position_ = LoaderPosition{.epoch = position.epoch};
    if (generator_ && position.own_generator.defined())
      set_generator_state(generator_, position.own_generator);
    if (position.batches > 0) resume_ = position;
  }
  const Dataset& dataset() const { return dataset_; }
  const std::shared_ptr<BatchSource>& batch_sampler() const { return batch_sampler_; }

 private:
  Dataset dataset_;
  std::shared_ptr<BatchSource> batch_sampler_;
  std::optional<at::Generator> generator_;
  LoaderPosition position_{};
  std::optional<LoaderPosition> resume_{};
};

/// One pass; a move-only input iterator. The batch belongs to the iterator until it advances, and is newly
/// made each time: tensors copied out of it stay as they are.
template <BatchDataset Dataset>
class Loader<Dataset>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = BatchType;
  using difference_type = std::ptrdiff_t;

  BatchType& operator*() const { return *pass_->batch; }
  BatchType* operator->() const { return &*pass_->batch; }
  Iterator& operator++() {
    fetch();
    return *this;
  }
  void operator++(int) { fetch(); }
  bool operator==(std::default_sentinel_t) const { return !pass_->batch; }

 private:
  friend class Loader;
  struct Pass {
    Loader& loader;
    std::unique_ptr<BatchStream> stream;
    std::optional<BatchType> batch{};
  };

  explicit Iterator(Loader& loader)
      : pass_(new Pass{.loader = loader,
                       .stream = start_pass(*loader.batch_sampler_, loader.generator_,
                                            std::exchange(loader.resume_, std::nullopt), loader.position_)}) {
    fetch();
  }
  void fetch() {
    pass_->batch.reset();
    auto& loader = pass_->loader;
    const at::Tensor indices = pass_->stream->next();
    if (!indices.defined()) {
      loader.position_ = LoaderPosition{.epoch = loader.position_.epoch};
      return;
    }
    loader.position_.batches += 1;
    loader.position_.samples += indices.numel() * loader.batch_sampler_->shares();
    pass_->batch.emplace(loader.dataset_.get_batch(indices));
  }

  std::unique_ptr<Pass> pass_;
};

/// `make_loader(dataset, {.batch_size = 128, .shuffle = true})`. Throws as make_batch_source() does.
template <BatchDataset Dataset>
Loader<Dataset> make_loader(Dataset dataset, const LoaderOptions& options = {}) {
  return Loader<Dataset>(std::move(dataset), options);
}

}  // namespace lockstep::data
