// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>

namespace lockstep::testing {

/// A part of `whole`, which shares its data.
inline ShardedTensor::Shard shard_of(const at::Tensor& whole, const std::vector<std::int64_t>& offsets,
                                     const std::vector<std::int64_t>& sizes) {
  auto part = whole;
  for (std::int64_t i = 0; i < whole.dim(); ++i) {
    const auto d = static_cast<std::size_t>(i);
    part = part.narrow(i, std::min(offsets[d], whole.size(i) - sizes[d]), sizes[d]);
  }
  return {.tensor = part, .shard_offsets = offsets};
}

/// What a rank has of a tensor that DTensor places so.
inline ShardedTensor placed(const at::Tensor& whole, const std::vector<std::int64_t>& mesh,
                            const std::vector<std::int64_t>& coordinate,
                            const std::vector<std::optional<std::int64_t>>& placements) {
  const auto [sizes, offsets] = distributed_checkpoint::compute_local_shape_and_global_offset(
      whole.sizes().vec(), mesh, coordinate, placements);
  return {.size = whole.sizes().vec(),
          .dtype = whole.scalar_type(),
          .local_shards = {shard_of(whole, offsets, sizes)}};
}

/// Blocks of a grid, given out in turn: several parts a rank.
inline ShardedTensor in_blocks(const at::Tensor& whole, std::int64_t height, std::int64_t width, int rank,
                               int ranks) {
  ShardedTensor parts{.size = whole.sizes().vec(), .dtype = whole.scalar_type()};
  int block = 0;
  for (std::int64_t y = 0; y < whole.size(0); y += height) {
    for (std::int64_t x = 0; x < whole.size(1); x += width) {
      if (block++ % ranks != rank) continue;
      parts.local_shards.push_back(
          shard_of(whole, {y, x}, {std::min(height, whole.size(0) - y), std::min(width, whole.size(1) - x)}));
    }
  }
  return parts;
}

/// Whole tensors, the same on all ranks: what sharded_checkpoint.py calls so.
inline Dict whole_tensors() {
  return {{"rows", torch::arange(35, torch::kFloat).view({7, 5})},
          {"columns", torch::arange(12).view({3, 4})},
          {"few", torch::arange(6, torch::kDouble).view({2, 3})},
          {"turned", torch::arange(24, torch::kFloat).view({4, 6}).t()},
          {"blocks", torch::arange(77, torch::kFloat).view({7, 11}).to(torch::kBFloat16)},
          {"cube", torch::arange(60, torch::kInt).view({3, 4, 5})},
          {"copies", torch::arange(9, torch::kFloat)},
          {"nothing", torch::empty({0, 4})},
          {"scalar", torch::tensor(2.5)}};
}

/// The same as `rank` of `ranks` has them.
inline Dict sharded_tensors(const Dict& whole, int rank, int ranks) {
  const auto tensor = [&](const char* name) { return whole.at(name).as_tensor(); };
  const auto along = [&](const char* name, std::int64_t dimension) {
    return placed(tensor(name), {ranks}, {rank}, {dimension});
  };
  // A mesh of two rows if possible.
  const std::int64_t height = ranks % 2 == 0 ? 2 : 1;
  const auto width = ranks / height;
  ShardedTensor scalar{.size = {}, .dtype = torch::kFloat};
  if (rank == ranks - 1) scalar.local_shards.push_back({.tensor = tensor("scalar"), .shard_offsets = {}});
  return {
      {"rows", along("rows", 0)},
      {"columns", along("columns", 1)},
      {"few", along("few", 0)},
      {"turned", along("turned", 1)},
      {"blocks", in_blocks(tensor("blocks"), 3, 4, rank, ranks)},
      {"cube", placed(tensor("cube"), {height, width}, {rank / width, rank % width}, {2, 0})},
      {"copies", placed(tensor("copies"), {height, width}, {rank / width, rank % width}, {std::nullopt, 0})},
      {"nothing", along("nothing", 0)},
      {"scalar", std::move(scalar)}};
}

/// The same shapes with zeros in them.
inline Dict zeros_like(const Dict& sharded) {
  Dict zeros;
  for (const auto& [name, value] : sharded) {
    auto tensor = *value.get_if<ShardedTensor>();
    for (auto& shard : tensor.local_shards) shard.tensor = torch::zeros_like(shard.tensor);
    zeros.set(name, std::move(tensor));
  }
  return zeros;
}

}  // namespace lockstep::testing
