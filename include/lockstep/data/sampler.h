// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

namespace lockstep {
class CallerPlace;
}

namespace lockstep::data {

/// The number of samples of a dataset with `size() const`. Throws ArgumentError if it is the nullopt of a dataset of
/// LibTorch.
template <typename Dataset>
std::int64_t size_of_dataset(const Dataset& dataset) {
  if constexpr (requires { static_cast<std::int64_t>(dataset.size()); }) {
    return static_cast<std::int64_t>(dataset.size());
  } else if constexpr (requires { static_cast<std::int64_t>(*dataset.size()); }) {
    const auto size = dataset.size();
    if (!size) throw ArgumentError("size() of the dataset is nullopt; return the number of samples");
    return static_cast<std::int64_t>(*size);
  } else {
    static_assert(sizeof(Dataset) == 0, "a number of samples or a dataset with size() const is needed here");
  }
}

/// A number of samples, or an object with size(): samplers accept a dataset, as in PyTorch:
/// `RandomSampler sampler(dataset);`.
struct SampleCount {
  template <std::integral I>
  SampleCount(I count) : value(static_cast<std::int64_t>(count)) {}  // NOLINT: implicit by design
  template <typename Sized>
    requires std::is_class_v<Sized>
  SampleCount(const Sized& sized) : value(size_of_dataset(sized)) {}  // NOLINT: implicit by design

  std::int64_t value;  ///< number of samples
};

/// One pass over a sampler. Draws random numbers lazily, as PyTorch's Python generators do.
class IndexStream {
 public:
  virtual ~IndexStream() = default;
  /// Writes the next indices to `out` and returns how many; fewer than out.size() only at the end.
  virtual std::int64_t read(std::span<std::int64_t> out) = 0;
};

/// Determines the samples of a pass and their order. Not thread-safe. PyTorch: torch.utils.data.Sampler.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Starts a new pass. The stream may outlive the sampler. PyTorch: `__iter__`.
  virtual std::unique_ptr<IndexStream> iter() const = 0;
  /// Resumes a pass after `samples` indices, counted over all shares(); the number of shares may have
  /// changed. The default implementation skips the indices.
  virtual std::unique_ptr<IndexStream> iter_from(std::int64_t samples) const;
  /// Number of ranks that share the data through samplers like this one.
  virtual std::int64_t shares() const { return 1; }
  /// Whether a pass draws from LibTorch's default generator.
  virtual bool uses_default_generator() const { return false; }
  /// Number of indices in one pass. PyTorch: `__len__`.
  virtual std::int64_t size() const = 0;
  /// Sets the epoch of the next pass. Most samplers ignore it.
  virtual void set_epoch(std::int64_t /*epoch*/) {}

  /// One whole pass as an int64 tensor of shape [size()].
  at::Tensor indices() const;
};

class BatchSource;
class BatchSampler;
class DistributedSampler;

/// Whether set_epoch() on a sampler also reaches copies of it: it does nothing, or the copies share the epoch.
template <typename S>
concept SharesEpochWithCopies =
    std::same_as<decltype(&S::set_epoch), void (Sampler::*)(std::int64_t)> ||
    std::same_as<decltype(&S::set_epoch), void (DistributedSampler::*)(std::int64_t)> ||
    std::same_as<decltype(&S::set_epoch), void (BatchSource::*)(std::int64_t)> ||
    std::same_as<decltype(&S::set_epoch), void (BatchSampler::*)(std::int64_t)>;

/// A sampler as an argument: a shared_ptr of one, a sampler by value, or nothing. `Base`: Sampler or BatchSource.
template <typename Base>
class SamplerPtr : public std::shared_ptr<Base> {
 public:
  SamplerPtr() = default;
  SamplerPtr(std::nullptr_t) {}  // NOLINT: implicit by design
  template <std::derived_from<Base> S>
  SamplerPtr(std::shared_ptr<S> sampler)  // NOLINT: implicit by design
      : std::shared_ptr<Base>(std::move(sampler)) {}
  /// Copies or moves the sampler.
  template <typename S>
    requires std::derived_from<std::remove_cvref_t<S>, Base>
  SamplerPtr(S&& sampler)  // NOLINT: implicit by design
      : std::shared_ptr<Base>(std::make_shared<std::remove_cvref_t<S>>(std::forward<S>(sampler))) {
    static_assert(
        !std::is_lvalue_reference_v<S> || SharesEpochWithCopies<std::remove_cvref_t<S>>,
        "set_epoch() of this sampler does not reach a copy of it: pass a std::shared_ptr of the sampler.");
  }
};

/// 0, 1, 2, ... PyTorch: SequentialSampler.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(SampleCount dataset) : count_(dataset.value) {}
  std::unique_ptr<IndexStream> iter() const override;
  std::int64_t size() const override { return count_; }

 private:
  std::int64_t count_;
};

/// Options of RandomSampler.
struct RandomSamplerOptions {
  bool replacement = false;                      ///< draw with replacement
  std::optional<std::int64_t> num_samples = {};  ///< default: the size of the dataset
  /// Default: each pass draws a seed from LibTorch's default CPU generator, which torch::manual_seed() seeds.
  std::optional<at::Generator> generator = {};
};

/// A random order with the indices of PyTorch's RandomSampler for the same generator state; leaves the
/// generator in the same state as PyTorch does.
class RandomSampler : public Sampler {
 public:
  /// Throws ArgumentError when the dataset is empty or num_samples is not positive.
  explicit RandomSampler(SampleCount dataset, const RandomSamplerOptions& options = {},
                         std::source_location where = std::source_location::current());
  /// With the options in PyTorch's order.
  RandomSampler(SampleCount dataset, std::same_as<bool> auto replacement,
                std::optional<std::int64_t> num_samples = {}, std::optional<at::Generator> generator = {},
                std::source_location where = std::source_location::current())
      : RandomSampler(dataset, {replacement, num_samples, std::move(generator)}, where) {}
  std::unique_ptr<IndexStream> iter() const override;
  bool uses_default_generator() const override { return !options_.generator; }
  std::int64_t size() const override { return num_samples_; }

 private:
  std::int64_t count_;
  std::int64_t num_samples_;
  RandomSamplerOptions options_;
};

/// Options of SubsetRandomSampler.
struct SubsetRandomSamplerOptions {
  std::optional<at::Generator> generator = {};  ///< default: LibTorch's default CPU generator
};

/// The given indices in a random order: PyTorch's SubsetRandomSampler for the same generator state; leaves
/// the generator in the same state as PyTorch does.
class SubsetRandomSampler : public Sampler {
 public:
  /// `indices` int64 [n] on the CPU; may be empty. Throws ArgumentError for any other tensor.
  explicit SubsetRandomSampler(at::Tensor indices, const SubsetRandomSamplerOptions& options = {},
                               std::source_location where = std::source_location::current());
  explicit SubsetRandomSampler(const std::vector<std::int64_t>& indices,
                               const SubsetRandomSamplerOptions& options = {},
                               std::source_location where = std::source_location::current());
  template <std::integral Index>
    requires(!std::same_as<Index, std::int64_t>)
  explicit SubsetRandomSampler(const std::vector<Index>& indices,
                               const SubsetRandomSamplerOptions& options = {},
                               std::source_location where = std::source_location::current())
      : SubsetRandomSampler(std::vector<std::int64_t>(indices.begin(), indices.end()), options, where) {}
  std::unique_ptr<IndexStream> iter() const override;
  bool uses_default_generator() const override { return !options_.generator; }
  std::int64_t size() const override { return indices_.size(0); }

 private:
  at::Tensor indices_;
  SubsetRandomSamplerOptions options_;
};

/// Options of WeightedRandomSampler.
struct WeightedRandomSamplerOptions {
  bool replacement = true;                      ///< false: an index occurs at most once in a pass
  std::optional<at::Generator> generator = {};  ///< default: LibTorch's default CPU generator
};

/// Draws index i with a probability proportional to weights[i], for classes of unequal size. The indices of
/// PyTorch's WeightedRandomSampler for the same generator state; leaves the generator in the same state as
/// PyTorch does. Without replacement, indices of weight 0 are drawn only after all others.
class WeightedRandomSampler : public Sampler {
 public:
  /// `weights` [n] on the CPU, of any real dtype, one per sample; they need not add up to 1. Throws
  /// ArgumentError when they are not 1 to 2^24 finite numbers of which none is negative and one is positive,
  /// and when num_samples is not positive or, without replacement, larger than n.
  WeightedRandomSampler(const at::Tensor& weights, std::int64_t num_samples,
                        const WeightedRandomSamplerOptions& options = {},
                        std::source_location where = std::source_location::current());
  WeightedRandomSampler(const std::vector<double>& weights, std::int64_t num_samples,
                        const WeightedRandomSamplerOptions& options = {},
                        std::source_location where = std::source_location::current());
  /// With the options in PyTorch's order. `weights`: a tensor or a vector.
  template <typename Weights = std::vector<double>>
  WeightedRandomSampler(const Weights& weights, std::int64_t num_samples, std::same_as<bool> auto replacement,
                        std::optional<at::Generator> generator = {},
                        std::source_location where = std::source_location::current())
      : WeightedRandomSampler(weights, num_samples, {replacement, std::move(generator)}, where) {}
  std::unique_ptr<IndexStream> iter() const override;
  bool uses_default_generator() const override { return !options_.generator; }
  std::int64_t size() const override { return num_samples_; }

 private:
  at::Tensor weights_;
  std::int64_t num_samples_;
  WeightedRandomSamplerOptions options_;
};

/// One pass over batches of indices.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// The next batch as an int64 CPU tensor of shape [samples]; an undefined tensor at the end.
  virtual at::Tensor next() = 0;
};

/// The source of a loader's batches of indices. Derive from it for custom batches; Python passes an iterable
/// of index lists as `batch_sampler`.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Starts a new pass. The stream may outlive this object.
  virtual std::unique_ptr<BatchStream> iter() const = 0;
  /// Resumes a pass after `batches` on this rank and `samples` on all ranks that share the data. The default
  /// implementation skips the batches.
  virtual std::unique_ptr<BatchStream> iter_from(std::int64_t batches, std::int64_t samples) const;
  /// As in Sampler.
  virtual std::int64_t shares() const { return 1; }
  /// Whether it draws from LibTorch's default CPU generator.
  virtual bool uses_default_generator() const { return false; }
  /// Number of batches in one pass.
  virtual std::int64_t size() const = 0;
  /// Sets the epoch, which determines the order of a shuffle.
  virtual void set_epoch(std::int64_t /*epoch*/) {}
};

/// Groups the indices of any sampler. PyTorch: BatchSampler.
class BatchSampler : public BatchSource {
 public:
  /// Batches of `batch_size` samples; the last one may be smaller, unless `drop_last` drops it then. Throws
  /// ArgumentError when there is no sampler or batch_size is not positive.
  BatchSampler(SamplerPtr<Sampler> sampler, std::int64_t batch_size, bool drop_last = false,
               std::source_location where = std::source_location::current());
  std::unique_ptr<BatchStream> iter() const override;
  std::unique_ptr<BatchStream> iter_from(std::int64_t batches, std::int64_t samples) const override;
  std::int64_t shares() const override { return sampler_->shares(); }
  bool uses_default_generator() const override { return sampler_->uses_default_generator(); }
  std::int64_t size() const override;
  void set_epoch(std::int64_t epoch) override { sampler_->set_epoch(epoch); }
  /// The sampler of the indices.
  Sampler& sampler() const { return *sampler_; }
  /// Samples of a batch.
  std::int64_t batch_size() const { return batch_size_; }
  /// Whether a smaller last batch is dropped.
  bool drop_last() const { return drop_last_; }

 private:
  std::shared_ptr<Sampler> sampler_;
  std::int64_t batch_size_;
  bool drop_last_;
};

/// Options of DistributedSampler.
struct DistributedSamplerOptions {
  std::optional<int> num_replicas = {};  ///< default: the size of the current world
  std::optional<int> rank = {};          ///< default: the rank in the current world
  bool shuffle = true;                   ///< a new order in every epoch
  std::int64_t seed = 0;                 ///< must be the same on all ranks
  /// Every rank gets the same number of samples. True drops the tail of the data; false repeats samples from
  /// the front of the order.
  bool drop_last = false;
};

/// The share of one rank: every num_replicas-th index of an order that is a function of seed + epoch. Yields
/// the indices of PyTorch's DistributedSampler. Call set_epoch() before each epoch; without the call every
/// epoch has the same order. Copies share the epoch. Rank 0 logs a warning, once for each sampler, when a
/// shuffled pass begins after a complete one and set_epoch() has never been called.
class DistributedSampler : public Sampler {
 public:
  /// Throws ArgumentError when the rank is not one of 0 .. num_replicas-1, and when a number is to come from
  /// the current world before init() in a rank of a launcher.
  explicit DistributedSampler(SampleCount dataset, const DistributedSamplerOptions& options = {},
                              std::source_location where = std::source_location::current());
  /// With the options in PyTorch's order.
  DistributedSampler(SampleCount dataset, int num_replicas, int rank, bool shuffle = true,
                     std::int64_t seed = 0, bool drop_last = false,
                     std::source_location where = std::source_location::current())
      : DistributedSampler(dataset, {num_replicas, rank, shuffle, seed, drop_last}, where) {}
  std::unique_ptr<IndexStream> iter() const override { return iter_from(0); }
  /// Shares the remaining samples among the current ranks: each sample of the epoch is visited once, and
  /// padding repeats some unless drop_last is set.
  std::unique_ptr<IndexStream> iter_from(std::int64_t samples) const override;
  std::int64_t shares() const override;
  std::int64_t size() const override;
  void set_epoch(std::int64_t epoch) override;
  /// Whether the ranks share the samples as those of the current world: rank and num_replicas are its numbers. When
  /// elastic::run() continues with fewer ranks, they become those of the smaller world.
  bool is_of_current_world() const;

 protected:
  /// The shuffled order of all samples, int64 [n]; `seed` is seed + epoch.
  virtual at::Tensor order(std::uint64_t seed) const;

 private:
  DistributedSampler(const CallerPlace& place, SampleCount dataset, const DistributedSamplerOptions& options);

  std::int64_t count_;
  int num_replicas_;
  int rank_;
  DistributedSamplerOptions options_;
  struct Passes;
  std::shared_ptr<Passes> passes_;
};

/// Options of DistributedEvalSampler.
struct DistributedEvalSamplerOptions {
  std::optional<int> num_replicas = {};  ///< default: the size of the current world
  std::optional<int> rank = {};          ///< default: the rank in the current world
};

/// The share of one rank for exact evaluation: indices rank, rank + num_replicas, ... Every sample is on
/// exactly one rank, so sums over the ranks (samples, correct answers) are those of the dataset. Some ranks
/// may have one sample, and so one batch, fewer: do not call a collective per batch. PyTorch has no such
/// sampler; its DistributedSampler pads and counts some samples twice.
class DistributedEvalSampler : public Sampler {
 public:
  /// Throws ArgumentError when the rank is not one of 0 .. num_replicas-1, and when a number is to come from
  /// the current world before init() in a rank of a launcher.
  explicit DistributedEvalSampler(SampleCount dataset, const DistributedEvalSamplerOptions& options = {},
                                  std::source_location where = std::source_location::current());
  std::unique_ptr<IndexStream> iter() const override { return iter_from(0); }
  std::unique_ptr<IndexStream> iter_from(std::int64_t samples) const override;
  std::int64_t shares() const override;
  std::int64_t size() const override;

 private:
  DistributedEvalSampler(const CallerPlace& place, SampleCount dataset,
                         const DistributedEvalSamplerOptions& options);

  std::int64_t count_;
  int num_replicas_;
  int rank_;
  DistributedEvalSamplerOptions options_;
};

}  // namespace lockstep::data
