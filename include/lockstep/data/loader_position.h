// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lockstep/data/sampler.h>

namespace lockstep::data {

/// Seeds for the random transforms of single samples: see LoaderOptions::augmentation_seed.
struct SampleSeeds {
  std::uint64_t base = 0;   ///< LoaderOptions::augmentation_seed
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
  at::Tensor own_generator{};  ///< the current state of LoaderOptions::generator; undefined without one
  std::int64_t passes = 0;     ///< passes started in this epoch before the current or next one
  /// The base seed that persistent workers keep from an earlier pass.
  std::optional<std::int64_t> base_seed{};
};

/// Seeds for loading the batches of a pass. They differ between batches, ranks, epochs and passes, and do not
/// depend on the worker.
struct BatchSeeds {
  std::uint64_t base = 0;
  std::int64_t epoch = 0;
  std::int64_t passes = 0;
  int rank = 0;

  std::uint64_t seed_of(std::int64_t batch) const;
};

/// Tracks the position of a loader: counts yielded batches, and starts and resumes passes. For one thread.
class LoaderProgress {
 public:
  /// `keep_base_seed`: with persistent workers only the first pass draws a base seed, as in PyTorch.
  LoaderProgress(std::optional<at::Generator> generator, std::optional<std::int64_t> seed,
                 bool keep_base_seed)
      : generator_(std::move(generator)), seed_(seed), keep_base_seed_(keep_base_seed) {}

  void set_epoch(std::int64_t epoch);
  LoaderPosition position() const;
  /// Makes the next start() resume there. Throws DataError when a generator state is invalid.
  void seek(const LoaderPosition& position);

  struct Start {
    std::unique_ptr<BatchStream> stream;
    BatchSeeds seeds;
    std::int64_t first_batch;  ///< the number of the stream's first batch within the pass
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
