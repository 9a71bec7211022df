// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// A number of samples, or anything that has a size(), so that a sampler takes a dataset as in PyTorch:
/// `RandomSampler sampler(dataset);`.
struct SampleCount {
  template <std::integral I>
  SampleCount(I count) : value(static_cast<std::int64_t>(count)) {}  // NOLINT: implicit by design
  template <typename Sized>
    requires requires(const Sized& s) {
      { s.size() } -> std::convertible_to<std::int64_t>;
    }
  SampleCount(const Sized& sized) : value(static_cast<std::int64_t>(sized.size())) {}  // NOLINT

  std::int64_t value;
};

/// One pass over a sampler. What it draws from a random generator it draws when it is needed and not
/// before, as PyTorch's Python generators do.
class IndexStream {
 public:
  virtual ~IndexStream() = default;
  /// Writes the next indices to `out` and returns how many; fewer than out.size() only at the end.
  virtual std::int64_t read(std::span<std::int64_t> out) = 0;
};

/// Decides which samples are visited and in which order. PyTorch: torch.utils.data.Sampler.
/// Not safe for use by several threads at once.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Starts a new pass. The stream may outlive the sampler. PyTorch: `__iter__`.
  virtual std::unique_ptr<IndexStream> iter() const = 0;
  /// Goes on with a pass of which `samples` indices have been handed out, counted over all shares(); also
  /// when the number of shares was another then. Passes over them unless a sampler knows a better way.
  virtual std::unique_ptr<IndexStream> iter_from(std::int64_t samples) const;
  /// How many samplers like this one, on as many ranks, share the data.
  virtual std::int64_t shares() const { return 1; }
  /// Whether a pass draws from LibTorch's default generator.
  virtual bool draws_by_default() const { return false; }
  /// Number of indices in one pass. PyTorch: `__len__`.
  virtual std::int64_t size() const = 0;
  /// Tells which epoch the next pass belongs to; most samplers do not care.
  virtual void set_epoch(std::int64_t /*epoch*/) {}

  /// One whole pass as an int64 tensor of shape [size()].
  at::Tensor indices() const;
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

struct RandomSamplerOptions {
  bool replacement = false;                      ///< draw with replacement
  std::optional<std::int64_t> num_samples = {};  ///< not given: as many as the dataset has
  /// Not given: each pass draws a seed from LibTorch's default CPU generator, so torch::manual_seed decides.
  std::optional<at::Generator> generator = {};
};

/// A random order, index for index PyTorch's RandomSampler with the same generator state, and leaving the
/// generator in the same state.
class RandomSampler : public Sampler {
 public:
  /// Throws ArgumentError when the dataset is empty or num_samples is not positive.
  explicit RandomSampler(SampleCount dataset, RandomSamplerOptions options = {});
  std::unique_ptr<IndexStream> iter() const override;
  bool draws_by_default() const override { return !options_.generator; }
  std::int64_t size() const override { return num_samples_; }

 private:
  std::int64_t count_;
  std::int64_t num_samples_;
  RandomSamplerOptions options_;
};

}  // namespace lockstep::data
