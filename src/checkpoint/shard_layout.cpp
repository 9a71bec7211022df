// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "serialize/errors.h"

namespace lockstep::distributed_checkpoint {
namespace {

void check_mesh(std::size_t dimensions, const std::vector<std::int64_t>& mesh_shape,
                const std::vector<std::int64_t>& my_coordinate,
                const std::vector<std::optional<std::int64_t>>& placements) {
  if (mesh_shape.size() != my_coordinate.size() || mesh_shape.size() != placements.size()) {
    throw_error<ArgumentError>(
        "a mesh of {} dimensions needs as many coordinates and placements, not {} and {}", mesh_shape.size(),
        my_coordinate.size(), placements.size());
  }
  for (std::size_t i = 0; i < mesh_shape.size(); ++i) {
    if (mesh_shape[i] < 1 || my_coordinate[i] < 0 || my_coordinate[i] >= mesh_shape[i]) {
      throw_error<ArgumentError>("coordinate {} is not within dimension {} of the mesh, which has {}",
                                 my_coordinate[i], i, mesh_shape[i]);
    }
    if (placements[i] && (*placements[i] < 0 || std::cmp_greater_equal(*placements[i], dimensions))) {
      throw_error<ArgumentError>("a tensor of {} dimensions cannot be split along dimension {}", dimensions,
                                 *placements[i]);
    }
  }
}

}  // namespace

LocalShape compute_local_shape_and_global_offset(const std::vector<std::int64_t>& global_shape,
                                                 const std::vector<std::int64_t>& mesh_shape,
                                                 const std::vector<std::int64_t>& my_coordinate,
                                                 const std::vector<std::optional<std::int64_t>>& placements) {
  check_mesh(global_shape.size(), mesh_shape, my_coordinate, placements);
  LocalShape local{.local_shape = global_shape,
                   .global_offset = std::vector<std::int64_t>(global_shape.size(), 0)};
  for (std::size_t i = 0; i < mesh_shape.size(); ++i) {
    if (!placements[i]) continue;
    const auto d = static_cast<std::size_t>(*placements[i]);
    auto& size = local.local_shape[d];
    auto& offset = local.global_offset[d];
    const auto chunk = (size + mesh_shape[i] - 1) / mesh_shape[i];
    const auto start = std::min(size, chunk * my_coordinate[i]);
    size = std::min(size - start, chunk);
    // PyTorch has an empty part at the end.
    offset = size == 0 ? global_shape[d] : offset + start;
  }
  return local;
}

}  // namespace lockstep::distributed_checkpoint
