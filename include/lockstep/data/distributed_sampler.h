// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <lockstep/data/sampler.h>

namespace lockstep::data {

struct DistributedSamplerOptions {
  std::optional<int> num_replicas = {};  ///< not given: the size of the current world
  std::optional<int> rank = {};          ///< not given: this process's rank in the current world
  bool shuffle = true;
  std::int64_t seed = 0;  ///< must be the same on all ranks
  /// Every rank gets the same number of samples: true drops the tail of the data, false repeats some samples
  /// from the front of the order.
  bool drop_last = false;
};

/// The share of one rank: every num_replicas-th index of an order that all ranks agree on because it follows
/// from seed + epoch. Index for index PyTorch's DistributedSampler. Call set_epoch() before each epoch, or
/// every epoch has the same order.
class DistributedSampler : public Sampler {
 public:
  /// Throws ArgumentError when the rank is not one of 0 .. num_replicas-1.
  explicit DistributedSampler(SampleCount dataset, DistributedSamplerOptions options = {});
  std::unique_ptr<IndexStream> iter() const override { return iter_from(0); }
  /// What the ranks have left is shared among the ranks there are now: each sample of the epoch is seen once,
  /// whatever their number was before (and some twice, to fill up, unless drop_last).
  std::unique_ptr<IndexStream> iter_from(std::int64_t samples) const override;
  std::int64_t shares() const override { return num_replicas_; }
  std::int64_t size() const override { return num_samples_; }
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }

 private:
  std::int64_t count_;
  int num_replicas_;
  int rank_;
  DistributedSamplerOptions options_;
  std::int64_t num_samples_;
  std::int64_t epoch_ = 0;
};

struct DistributedEvalSamplerOptions {
  std::optional<int> num_replicas = {};  ///< not given: the size of the current world
  std::optional<int> rank = {};          ///< not given: this process's rank in the current world
};

/// The share of one rank for exact evaluation: indices rank, rank + num_replicas, ... in order, each sample
/// of the dataset on exactly one rank. Nothing is repeated, so sums over the ranks (samples, correct answers)
/// are those of the whole dataset; in exchange some ranks may get one sample, and so one batch, fewer:
/// do not call a collective once a batch. PyTorch has no such sampler; its DistributedSampler pads, which
/// counts some samples twice.
class DistributedEvalSampler : public Sampler {
 public:
  /// Throws ArgumentError when the rank is not one of 0 .. num_replicas-1.
  explicit DistributedEvalSampler(SampleCount dataset, DistributedEvalSamplerOptions options = {});
  std::unique_ptr<IndexStream> iter() const override { return iter_from(0); }
  std::unique_ptr<IndexStream> iter_from(std::int64_t samples) const override;
  std::int64_t shares() const override { return num_replicas_; }
  std::int64_t size() const override;

 private:
  std::int64_t count_;
  int num_replicas_;
  int rank_;
};

}  // namespace lockstep::data
