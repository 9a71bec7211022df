// SPDX-License-Identifier: BSD-3-Clause
#include <initializer_list>
#include <utility>

#include <lockstep/data/loader_position.h>

#include "data/mix_seed.h"
#include "device/generators.h"

namespace lockstep::data {
namespace {

thread_local std::optional<SampleSeeds> thread_seeds;

}  // namespace

std::uint64_t SampleSeeds::seed_of(std::int64_t index) const {
  return mix_seed(base, {epoch, passes, index});
}

std::optional<at::Generator> sample_generator(std::int64_t index) {
  if (!thread_seeds) return std::nullopt;
  return device::seeded_generator(thread_seeds->seed_of(index));
}

SampleSeedsScope::SampleSeedsScope(const std::optional<SampleSeeds>& seeds)
    : outer_(std::exchange(thread_seeds, seeds)) {}

SampleSeedsScope::~SampleSeedsScope() { thread_seeds = outer_; }

}  // namespace lockstep::data
