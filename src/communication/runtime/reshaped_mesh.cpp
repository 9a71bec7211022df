// SPDX-License-Identifier: BSD-3-Clause
// Meshes of groups that exist, and of other meshes: from_group() and unflatten().
#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "runtime/mesh_ranks.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using runtime::MeshRanks;
using runtime::to_vector;
using Axis = MeshRanks::Axis;

std::vector<int> global_ranks_of(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(group.global_rank(i));
  return ranks;
}

// The row of this rank in the dimension.
std::vector<int> own_row(const at::Tensor& ranks, const Axis& axis, int own) {
  const auto rows = runtime::parts_of(ranks, {axis});
  return to_vector(rows[rows.eq(own).nonzero()[0][0].item<std::int64_t>()]);
}

void check_ranks_of(const ProcessGroup& group, std::vector<int> row, std::size_t dim) {
  auto ranks = global_ranks_of(group);
  std::ranges::sort(ranks);
  std::ranges::sort(row);
  if (ranks == row) return;
  throw_error<ArgumentError>(
      "DeviceMesh::from_group: group {} has the ranks {}, but dimension {} of the mesh has {} there; pass "
      "one group for each dimension, in their order",
      group.name(), fmt::join(ranks, ", "), dim, fmt::join(row, ", "));
}

// Replaces `old_axis`, a dimension of the whole mesh, and counts the later dimensions on.
std::vector<Axis> with_parts(const std::vector<Axis>& axes, const Axis& old_axis,
                             const std::vector<Axis>& parts) {
  const auto dim = old_axis.dims.front();
  const auto more = std::ssize(parts) - 1;
  std::vector<Axis> changed;
  for (auto axis : axes) {
    if (axis.name == old_axis.name) {
      changed.insert(changed.end(), parts.begin(), parts.end());
      continue;
    }
    std::vector<std::int64_t> dims;
    for (const auto old : axis.dims) {
      if (old != dim) dims.push_back(old < dim ? old : old + more);
      for (std::int64_t i = 0; old == dim && i <= more; ++i) dims.push_back(dim + i);
    }
    axis.dims = std::move(dims);
    changed.push_back(std::move(axis));
  }
  return changed;
}

std::vector<std::string> names_of(const std::vector<Axis>& axes) {
  std::vector<std::string> names;
  for (const auto& axis : axes) names.push_back(axis.name);
  return names;
}

void check_sizes(const DeviceMesh& mesh, std::int64_t size, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::string>& names) {
  const auto product = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  const bool positive = std::ranges::all_of(sizes, [](auto each) { return each > 0; });
  if (sizes.empty() || !positive || product != size || sizes.size() != names.size()) {
    throw_error<ArgumentError>(
        "DeviceMesh({}): unflatten(): mesh_sizes ({}) and mesh_dim_names ({}) for a dimension of {} ranks; "
        "give as many names as sizes, whose product is {}",
        runtime::joined_shape(mesh), fmt::join(sizes, ", "), fmt::join(names, ", "), size, size);
  }
}

}  // namespace

DeviceMesh DeviceMesh::from_group(const ProcessGroup& group, const std::optional<at::Tensor>& mesh,
                                  const std::vector<std::string>& mesh_dim_names) {
  const auto ranks = global_ranks_of(group);
  if (mesh && (mesh->dim() != 1 || to_vector(mesh->to(at::kInt)) != ranks)) {
    throw_error<ArgumentError>(
        "DeviceMesh::from_group: the mesh is not that of group {}, which has the ranks {}", group.name(),
        fmt::join(ranks, ", "));
  }
  return from_group(std::vector{group}, at::tensor(ranks, at::kInt), mesh_dim_names);
}

DeviceMesh DeviceMesh::from_group(const std::vector<ProcessGroup>& groups, const at::Tensor& mesh,
                                  const std::vector<std::string>& mesh_dim_names) {
  const auto& world = runtime::require_run("DeviceMesh::from_group").world();
  const auto ranks = runtime::checked_ranks(mesh, world.size);
  if (groups.empty() || std::ssize(groups) != ranks.dim()) {
    throw_error<ArgumentError>(
        "DeviceMesh::from_group: {} groups for a mesh of {} dimensions; pass one for each", groups.size(),
        ranks.dim());
  }
  runtime::check_mesh_dim_names(mesh_dim_names, ranks.dim());
  if (!ranks.eq(world.rank).any().item<bool>()) {
    throw_error<ArgumentError>(
        "DeviceMesh::from_group: rank {} is not in the mesh of the ranks {}; only these call it", world.rank,
        fmt::join(to_vector(ranks), ", "));
  }
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Axis axis{.name = mesh_dim_names.empty() ? "" : mesh_dim_names[i],
              .dims = {static_cast<std::int64_t>(i)},
              .group = groups[i]};
    check_ranks_of(groups[i], own_row(ranks, axis, world.rank), i);
    axes.push_back(std::move(axis));
  }
  return {std::make_shared<MeshRanks>(
              MeshRanks{.ranks = ranks, .own = world.rank, .contains_own = true, .dimensions = axes}),
          axes};
}

DeviceMesh DeviceMesh::unflatten(const MeshDim& dim, const std::vector<std::int64_t>& mesh_sizes,
                                 const std::vector<std::string>& mesh_dim_names,
                                 const std::map<MeshDim, std::string>& backend_override) const {
  if (this->mesh_dim_names().empty()) {
    throw_error<ArgumentError>("DeviceMesh({}): unflatten() needs a mesh with mesh_dim_names",
                               runtime::joined_shape(*this));
  }
  const auto& old = axis(dim);
  const auto place = std::ranges::find(ranks_->dimensions, old.dims, &Axis::dims);
  if (place == ranks_->dimensions.end() || old.name != place->name) {
    throw_error<ArgumentError>(
        "DeviceMesh({}): unflatten(): \"{}\" is made by flatten(); unflatten a dimension of the mesh itself",
        runtime::joined_shape(*this), old.name);
  }
  check_sizes(*this, size(dim), mesh_sizes, mesh_dim_names);
  const auto first = old.dims.front();
  auto shape = ranks_->ranks.sizes().vec();
  shape.insert(shape.erase(shape.begin() + first), mesh_sizes.begin(), mesh_sizes.end());
  std::vector<Axis> parts;
  for (std::size_t i = 0; i < mesh_sizes.size(); ++i)
    parts.push_back(
        {.name = mesh_dim_names[i], .dims = {first + static_cast<std::int64_t>(i)}, .group = std::nullopt});
  MeshRanks whole{.ranks = ranks_->ranks.view(shape),
                  .own = ranks_->own,
                  .contains_own = ranks_->contains_own,
                  .dimensions = with_parts(ranks_->dimensions, old, parts),
                  .flattened = with_parts(ranks_->flattened, old, parts)};
  auto names = names_of(whole.dimensions);
  std::ranges::copy(names_of(whole.flattened), std::back_inserter(names));
  runtime::check_mesh_dim_names(names, std::ssize(names));
  const auto backends =
      runtime::backends_of({.mesh_dim_names = mesh_dim_names, .backend_override = backend_override},
                           static_cast<int>(parts.size()));
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i].group = runtime::make_group(whole.ranks, parts[i], backends[i]);
  whole.dimensions = with_parts(ranks_->dimensions, old, parts);
  return {std::make_shared<MeshRanks>(std::move(whole)), with_parts(axes_, old, parts)};
}

}  // namespace lockstep
