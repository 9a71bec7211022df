// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/base/world.h>

#include "base/launched_rank.h"
#include "base/throw_error.h"

// The share of the samples that a sampler yields. Numbers that its options leave open come from the world and follow it:
// the ranks that are left after a loss share all samples (world_since()).
namespace lockstep::data {

// Throws ArgumentError unless the rank is one of the replicas.
inline void check_rank(std::string_view sampler, int rank, int num_replicas) {
  if (rank >= 0 && rank < num_replicas) return;
  throw_error<ArgumentError>(
      "{}: rank {} is not one of the {} replicas; rank should be in 0 .. num_replicas-1", sampler, rank,
      num_replicas);
}

// The options' number or, by default, the world's.
template <typename Options>
int size_of(const Options& options, const char* sampler) {
  return options.num_replicas ? *options.num_replicas : shared_world(sampler).size;
}

template <typename Options>
int rank_of(const Options& options, const char* sampler) {
  return options.rank ? *options.rank : shared_world(sampler).rank;
}

// Numbers that came from the world must be those of the present one.
template <typename Options>
void check_world(const char* sampler, const Options& options, const World& share) {
  if (options.num_replicas && options.rank) return;
  const auto now = current_world();
  require_same_world(sampler, {.rank = options.rank ? now.rank : share.rank,
                               .size = options.num_replicas ? now.size : share.size});
}

// Which part of the samples a sampler of these numbers yields now.
template <typename Options>
World share_now(const Options& options, int rank, int num_replicas) {
  const World made_in{.rank = rank, .size = num_replicas};
  return options.num_replicas || options.rank ? made_in : world_since(made_in);
}

// The number of samples of each rank's share.
inline std::int64_t share_of(std::int64_t count, int num_replicas, bool drop_last) {
  return (drop_last ? count : count + num_replicas - 1) / num_replicas;
}

}  // namespace lockstep::data
