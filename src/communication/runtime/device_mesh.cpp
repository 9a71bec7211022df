// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/runtime/default_group.h>
#include <lockstep/runtime/device_mesh.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "runtime/mesh_ranks.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using runtime::joined_shape;
using runtime::MeshRanks;
using runtime::parts_of;
using runtime::to_vector;
using runtime::with_parts;
using Axis = MeshRanks::Axis;
using Names = std::vector<std::string>;
using Sizes = std::vector<std::int64_t>;

// A dimension of one rank overlaps with none and may be anywhere.
template <class Axes>
void check_order(const at::Tensor& ranks, const Axes& axes, const Names& names) {
  Sizes dims;
  for (const auto& axis : axes)
    std::ranges::copy_if(axis.dims, std::back_inserter(dims), [&](auto dim) { return ranks.size(dim) > 1; });
  if (!std::ranges::is_sorted(dims)) {
    throw_error<ArgumentError>(
        "DeviceMesh: a slice by ({}) reorders the dimensions; name them in the order of the mesh",
        fmt::join(names, ", "));
  }
  if (std::ranges::adjacent_find(dims) != dims.end()) {
    throw_error<ArgumentError>("DeviceMesh: the dimensions ({}) overlap, so they make no slice",
                               fmt::join(names, ", "));
  }
}

}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<MeshRanks> ranks, std::vector<Axis> axes)
    : ranks_(std::move(ranks)), axes_(std::move(axes)) {}

DeviceMesh::DeviceMesh(const at::Tensor& mesh, const DeviceMeshOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const auto& run = runtime::require_run("DeviceMesh");
  auto ranks = runtime::checked_ranks(mesh, run.world().size);
  const auto& names = options.mesh_dim_names;
  runtime::check_mesh_dim_names(names, ranks.dim());
  const auto backends = runtime::backends_of(options, static_cast<int>(ranks.dim()));
  for (std::int64_t dim = 0; dim < ranks.dim(); ++dim) {
    const auto i = static_cast<std::size_t>(dim);
    Axis axis{.name = names.empty() ? "" : names[i], .dims = {dim}, .group = std::nullopt};
    axis.group = runtime::make_group(ranks, axis, backends[i]);
    axes_.push_back(std::move(axis));
  }
  const bool contains_own = ranks.eq(run.world().rank).any().item<bool>();
  ranks_ = std::make_shared<MeshRanks>(MeshRanks{
      .ranks = std::move(ranks), .own = run.world().rank, .contains_own = contains_own, .dimensions = axes_});
}

bool DeviceMesh::is_whole() const {
  return axes_.size() == ranks_->dimensions.size() &&
         std::ranges::equal(axes_, ranks_->dimensions, {}, &Axis::dims, &Axis::dims);
}

const DeviceMesh::Axis& DeviceMesh::find_axis(const std::string& name) const {
  const auto own = std::ranges::find(axes_, name, &Axis::name);
  if (own != axes_.end()) return *own;
  const auto& flattened = ranks_->flattened;
  if (is_whole()) {
    const auto found = std::ranges::find(flattened, name, &Axis::name);
    if (found != flattened.end()) return *found;
  }
  auto names = mesh_dim_names();
  if (is_whole())
    for (const auto& axis : flattened) names.push_back(axis.name);
  throw_error<ArgumentError>("DeviceMesh({}): there is no dimension \"{}\"; it has ({})", joined_shape(*this),
                             name, fmt::join(names, ", "));
}

DeviceMesh DeviceMesh::operator[](const std::string& mesh_dim_name) const {
  return (*this)[std::vector{mesh_dim_name}];
}
DeviceMesh DeviceMesh::operator[](std::initializer_list<std::string> mesh_dim_names) const {
  return (*this)[std::vector(mesh_dim_names)];
}
DeviceMesh DeviceMesh::operator[](const Names& names) const {
  if (mesh_dim_names().empty()) {
    throw_error<ArgumentError>("DeviceMesh({}): a slice by ({}) needs a mesh with mesh_dim_names",
                               joined_shape(*this), fmt::join(names, ", "));
  }
  if (names.empty()) throw_error<ArgumentError>("DeviceMesh: a slice needs at least one name");
  std::vector<Axis> axes;
  for (const auto& name : names) axes.push_back(find_axis(name));
  check_order(ranks_->ranks, axes, names);
  return {ranks_, std::move(axes)};
}

DeviceMesh DeviceMesh::flatten(const std::string& mesh_dim_name, std::source_location where) const {
  const CallerPlace place(where);
  const auto names = mesh_dim_names();
  if (names.empty()) {
    throw_error<ArgumentError>("DeviceMesh({}): flatten() needs a mesh with mesh_dim_names",
                               joined_shape(*this));
  }
  const auto name = mesh_dim_name.empty() ? fmt::format("{}", fmt::join(names, "_")) : mesh_dim_name;
  if (axes_.size() == 1 && names.front() == name) return *this;
  Axis axis{.name = name, .dims = {}, .group = std::nullopt};
  for (const auto& part : axes_) axis.dims.insert(axis.dims.end(), part.dims.begin(), part.dims.end());
  auto& flattened = ranks_->flattened;
  const auto earlier = std::ranges::find(flattened, name, &Axis::name);
  const bool taken = std::ranges::find(ranks_->dimensions, name, &Axis::name) != ranks_->dimensions.end();
  if (taken || (earlier != flattened.end() && earlier->dims != axis.dims)) {
    throw_error<ArgumentError>(
        "DeviceMesh({}): the mesh has a dimension \"{}\" of other ranks; give flatten() another name",
        joined_shape(*this), name);
  }
  if (earlier != flattened.end()) return {ranks_, {*earlier}};
  axis.group = runtime::make_group(ranks_->ranks, axis);
  flattened.push_back(axis);
  return {ranks_, {std::move(axis)}};
}

const DeviceMesh::Axis& DeviceMesh::axis(const MeshDim& dim) const {
  if (const auto* name = std::get_if<std::string>(&dim)) return find_axis(*name);
  const auto number = std::get<int>(dim);
  if (number >= 0 && number < ndim()) return axes_[static_cast<std::size_t>(number)];
  throw_error<ArgumentError>("DeviceMesh({}): there is no dimension {}; it has dimensions 0 to {}",
                             joined_shape(*this), number, ndim() - 1);
}

const DeviceMesh::Axis& DeviceMesh::only_axis(const char* caller,
                                              const std::optional<MeshDim>& mesh_dim) const {
  if (!mesh_dim && ndim() != 1) {
    throw_error<ArgumentError>(
        "DeviceMesh({}): {}() without mesh_dim is for meshes of one dimension; name one, or call "
        "get_all_groups()",
        joined_shape(*this), caller);
  }
  const auto& found = mesh_dim ? axis(*mesh_dim) : axes_.front();
  if (!ranks_->contains_own) {
    throw_error<ArgumentError>("DeviceMesh({}): {}(): rank {} is not in the mesh, so it has no groups there",
                               joined_shape(*this), caller, ranks_->own);
  }
  return found;
}

ProcessGroup DeviceMesh::get_group(const std::optional<MeshDim>& mesh_dim, std::source_location where) const {
  const CallerPlace place(where);
  return only_axis("get_group", mesh_dim).group.value();
}

std::vector<ProcessGroup> DeviceMesh::get_all_groups() const {
  std::vector<ProcessGroup> groups;
  if (!ranks_->contains_own) return groups;
  for (const auto& axis : axes_) groups.push_back(axis.group.value());
  return groups;
}

int DeviceMesh::get_rank() const { return ranks_->own; }

int DeviceMesh::get_local_rank(const std::optional<MeshDim>& mesh_dim, std::source_location where) const {
  const CallerPlace place(where);
  return only_axis("get_local_rank", mesh_dim).group.value().rank();
}

std::int64_t DeviceMesh::size() const {
  const auto sizes = shape();
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t DeviceMesh::size(const MeshDim& dim) const {
  return parts_of(ranks_->ranks, std::vector{axis(dim)}).size(1);
}

std::int64_t DeviceMesh::ndim() const { return static_cast<std::int64_t>(axes_.size()); }
Sizes DeviceMesh::shape() const { return parts().sizes().slice(1).vec(); }

Names DeviceMesh::mesh_dim_names() const {
  Names names;
  for (const auto& axis : axes_)
    if (!axis.name.empty()) names.push_back(axis.name);
  return names;
}

at::Tensor DeviceMesh::parts() const { return parts_of(ranks_->ranks, axes_); }

at::Tensor DeviceMesh::mesh() const {
  const auto all = parts();
  if (all.size(0) == 1) return all[0].clone();
  if (ranks_->contains_own) return all[all.eq(ranks_->own).nonzero()[0][0].item<std::int64_t>()].clone();
  throw_error<ArgumentError>("DeviceMesh({}): rank {} is in none of the {} parts of the mesh of this shape",
                             joined_shape(*this), ranks_->own, all.size(0));
}

std::optional<Sizes> DeviceMesh::get_coordinate() const {
  if (!ranks_->contains_own) return std::nullopt;
  const auto position = mesh().eq(ranks_->own).nonzero()[0].contiguous();
  return std::vector(position.const_data_ptr<std::int64_t>(),
                     position.const_data_ptr<std::int64_t>() + position.numel());
}

namespace {

std::vector<int> global_ranks_of(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(group.global_rank(i));
  return ranks;
}

// The row of this rank in the dimension.
std::vector<int> own_row(const at::Tensor& ranks, const Axis& axis, int own) {
  const auto rows = parts_of(ranks, {axis});
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

Names names_of(const std::vector<Axis>& axes) {
  Names names;
  for (const auto& axis : axes) names.push_back(axis.name);
  return names;
}

void check_sizes(const DeviceMesh& mesh, std::int64_t size, const Sizes& sizes, const Names& names) {
  const auto product = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  const bool positive = std::ranges::all_of(sizes, [](auto each) { return each > 0; });
  if (sizes.empty() || !positive || product != size || sizes.size() != names.size()) {
    throw_error<ArgumentError>(
        "DeviceMesh({}): unflatten(): mesh_sizes ({}) and mesh_dim_names ({}) for a dimension of {} ranks; "
        "give as many names as sizes, whose product is {}",
        joined_shape(mesh), fmt::join(sizes, ", "), fmt::join(names, ", "), size, size);
  }
}

}  // namespace

DeviceMesh DeviceMesh::from_group(const ProcessGroup& group, const std::optional<at::Tensor>& mesh,
                                  const Names& mesh_dim_names, std::source_location where) {
  const CallerPlace place(where);
  const auto ranks = global_ranks_of(group);
  if (mesh && (mesh->dim() != 1 || to_vector(mesh->to(at::kInt)) != ranks)) {
    throw_error<ArgumentError>(
        "DeviceMesh::from_group: the mesh is not that of group {}, which has the ranks {}", group.name(),
        fmt::join(ranks, ", "));
  }
  return from_group(std::vector{group}, at::tensor(ranks, at::kInt), mesh_dim_names);
}

DeviceMesh DeviceMesh::from_group(const std::vector<ProcessGroup>& groups, const at::Tensor& mesh,
                                  const Names& mesh_dim_names, std::source_location where) {
  const CallerPlace place(where);
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

DeviceMesh DeviceMesh::unflatten(const MeshDim& dim, const Sizes& mesh_sizes, const Names& mesh_dim_names,
                                 const std::map<MeshDim, std::string>& backend_override,
                                 std::source_location where) const {
  const CallerPlace place(where);
  if (this->mesh_dim_names().empty()) {
    throw_error<ArgumentError>("DeviceMesh({}): unflatten() needs a mesh with mesh_dim_names",
                               joined_shape(*this));
  }
  const auto& old = axis(dim);
  const auto found = std::ranges::find(ranks_->dimensions, old.dims, &Axis::dims);
  if (found == ranks_->dimensions.end() || old.name != found->name) {
    throw_error<ArgumentError>(
        "DeviceMesh({}): unflatten(): \"{}\" is made by flatten(); unflatten a dimension of the mesh itself",
        joined_shape(*this), old.name);
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

DeviceMesh init_device_mesh(const Sizes& mesh_shape, const DeviceMeshOptions& options,
                            std::source_location where) {
  const CallerPlace place(where);
  const bool positive = std::ranges::all_of(mesh_shape, [](auto size) { return size > 0; });
  if (mesh_shape.empty() || !positive) {
    throw_error<ArgumentError>("init_device_mesh: mesh_shape ({}) needs one or more positive sizes",
                               fmt::join(mesh_shape, ", "));
  }
  const auto count =
      std::accumulate(mesh_shape.begin(), mesh_shape.end(), std::int64_t{1}, std::multiplies<>());
  return DeviceMesh(at::arange(count, at::kInt).view(mesh_shape), options);
}

DeviceMesh init_device_mesh(std::string_view device_type, const Sizes& mesh_shape,
                            const DeviceMeshOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const auto own = runtime::require_run("lockstep::init_device_mesh").device().type();
  if (const auto name = c10::DeviceTypeName(own, true); device_type != "cpu" && device_type != name) {
    throw_error<ArgumentError>(
        "init_device_mesh: device_type is \"{}\", but this rank trains on {}; pass \"{}\" or leave it out",
        device_type, name, name);
  }
  return init_device_mesh(mesh_shape, options, where);
}

void manual_seed(std::uint64_t seed, const DeviceMesh& mesh, const std::vector<std::string>& apart,
                 std::source_location where) {
  const CallerPlace place(where);
  std::uint64_t stream = 0;
  for (const auto& dim : apart) {
    stream = stream * static_cast<std::uint64_t>(mesh.size(dim)) +
             static_cast<std::uint64_t>(mesh.get_local_rank(dim));
  }
  // Far apart, also from the streams of the next seeds.
  manual_seed(seed + (stream + 1) * 0x9E3779B97F4A7C15);
}

namespace tensor {

Placement Replicate() { return Placement(Placement::Kind::replicate); }
Placement Shard(std::int64_t dim) { return Placement(Placement::Kind::shard, dim); }
Placement Partial() { return Placement(Placement::Kind::partial); }

}  // namespace tensor
}  // namespace lockstep
