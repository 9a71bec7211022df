// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>

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

}  // namespace lockstep::data
