// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include <lockstep/data/sampler.h>

namespace lockstep::data {

/// One pass over batches of indices.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// The next batch as an int64 CPU tensor of shape [samples]; an undefined tensor at the end.
  virtual at::Tensor next() = 0;
};

/// What a loader takes its batches of indices from. Derive from it to form batches in a way of your own,
/// where Python would pass any iterable of index lists as `batch_sampler`.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Starts a new pass. The stream may outlive this object.
  virtual std::unique_ptr<BatchStream> iter() const = 0;
  /// Goes on with a pass of which `batches` have been handed out here, and `samples` on all ranks that share
  /// the data. Passes over the batches unless a source knows a better way.
  virtual std::unique_ptr<BatchStream> iter_from(std::int64_t batches, std::int64_t samples) const;
  /// As Sampler has them.
  virtual std::int64_t shares() const { return 1; }
  virtual bool draws_by_default() const { return false; }
  /// Number of batches in one pass.
  virtual std::int64_t size() const = 0;
  virtual void set_epoch(std::int64_t /*epoch*/) {}
};

struct BatchSamplerOptions {
  std::int64_t batch_size = 1;  ///< samples; the last batch may be smaller
  bool drop_last = false;       ///< leave out a last batch that would be smaller
};

/// Groups the indices of any sampler. PyTorch: BatchSampler.
class BatchSampler : public BatchSource {
 public:
  /// Throws ArgumentError when there is no sampler or batch_size is not positive.
  BatchSampler(std::shared_ptr<Sampler> sampler, BatchSamplerOptions options);
  std::unique_ptr<BatchStream> iter() const override;
  std::unique_ptr<BatchStream> iter_from(std::int64_t batches, std::int64_t samples) const override;
  std::int64_t shares() const override { return sampler_->shares(); }
  bool draws_by_default() const override { return sampler_->draws_by_default(); }
  std::int64_t size() const override;
  void set_epoch(std::int64_t epoch) override { sampler_->set_epoch(epoch); }

 private:
  std::shared_ptr<Sampler> sampler_;
  BatchSamplerOptions options_;
};

}  // namespace lockstep::data
