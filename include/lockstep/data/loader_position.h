// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lockstep/data/batch_sampler.h>

namespace lockstep::data {

/// Where a loader is: between two passes, or so many batches into one. What a checkpoint keeps of it. Batches
/// that workers have loaded ahead do not count.
struct LoaderPosition {
  std::int64_t epoch = 0;       ///< of set_epoch()
  std::int64_t batches = 0;     ///< handed out in this pass, on one rank; 0 between passes
  std::int64_t samples = 0;     ///< handed out in this pass, on all ranks that share the data
  at::Tensor pass_generator{};  ///< the generator's state as the pass began: uint8, undefined between passes
  at::Tensor own_generator{};   ///< the present state of LoaderOptions::generator; undefined without one
  std::int64_t passes = 0;      ///< begun in this epoch before this one; between passes: before the next one
  /// The base seed of an earlier pass, from which persistent workers go on; none when the pass draws its own.
  std::optional<std::int64_t> base_seed{};
};

/// From which seed a worker loads each batch of a pass: the same whichever worker it is, another one for each
/// batch, rank, epoch and pass.
struct BatchSeeds {
  std::uint64_t base = 0;
  std::int64_t epoch = 0;
  std::int64_t passes = 0;
  int rank = 0;

  std::uint64_t of(std::int64_t batch) const;
};

/// How far a loader has come: counts what is handed out, starts passes and goes on with them. For one thread.
class LoaderProgress {
 public:
  /// `keeps_base_seed`: workers persist, and so only the first pass draws one, as in PyTorch.
  LoaderProgress(std::optional<at::Generator> generator, std::optional<std::int64_t> seed,
                 bool keeps_base_seed)
      : generator_(std::move(generator)), seed_(seed), keeps_base_seed_(keeps_base_seed) {}

  void set_epoch(std::int64_t epoch);
  LoaderPosition position() const;
  /// The next start() goes on there. Throws DataError when that has no state of a generator.
  void seek(const LoaderPosition& position);

  struct Start {
    std::unique_ptr<BatchStream> stream;
    BatchSeeds seeds;
    std::int64_t first_batch;  ///< the number of the stream's first batch within the pass
  };
  /// Begins a pass, or goes on with the one that seek() named.
  Start start(const BatchSource& source);

  /// A batch was handed out that holds `samples` on all ranks together.
  void count(std::int64_t samples);
  /// The pass is over.
  void finish();

 private:
  std::unique_ptr<BatchStream> begin(const BatchSource& source);
  std::unique_ptr<BatchStream> resume(const BatchSource& source, const LoaderPosition& from);
  void draw_base_seed();

  std::optional<at::Generator> generator_;
  std::optional<std::int64_t> seed_;
  bool keeps_base_seed_;
  LoaderPosition position_{};
  std::optional<LoaderPosition> resume_{};
  std::int64_t passes_begun_ = 0;  // in this epoch
  std::int64_t base_seed_ = 0;
  std::optional<std::int64_t> kept_base_seed_{};
};

}  // namespace lockstep::data
