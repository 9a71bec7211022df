// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <numeric>
#include <ostream>

#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/runtime/device_mesh.h>

#include "base/throw_error.h"
#include "runtime/mesh_ranks.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using runtime::joined_shape;
using runtime::parts_of;
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

DeviceMesh::DeviceMesh(std::shared_ptr<runtime::MeshRanks> ranks, std::vector<Axis> axes)
    : ranks_(std::move(ranks)), axes_(std::move(axes)) {}

DeviceMesh::DeviceMesh(const at::Tensor& mesh, const DeviceMeshOptions& options) {
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
  ranks_ = std::make_shared<runtime::MeshRanks>(runtime::MeshRanks{
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
DeviceMesh DeviceMesh::operator[](const std::vector<std::string>& names) const {
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

DeviceMesh DeviceMesh::flatten(const std::string& mesh_dim_name) const {
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

ProcessGroup DeviceMesh::get_group(const std::optional<MeshDim>& mesh_dim) const {
  return only_axis("get_group", mesh_dim).group.value();
}

std::vector<ProcessGroup> DeviceMesh::get_all_groups() const {
  std::vector<ProcessGroup> groups;
  if (!ranks_->contains_own) return groups;
  for (const auto& axis : axes_) groups.push_back(axis.group.value());
  return groups;
}

int DeviceMesh::get_rank() const { return ranks_->own; }

int DeviceMesh::get_local_rank(const std::optional<MeshDim>& mesh_dim) const {
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
std::vector<std::int64_t> DeviceMesh::shape() const { return parts().sizes().slice(1).vec(); }

std::vector<std::string> DeviceMesh::mesh_dim_names() const {
  std::vector<std::string> names;
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

std::optional<std::vector<std::int64_t>> DeviceMesh::get_coordinate() const {
  if (!ranks_->contains_own) return std::nullopt;
  const auto position = mesh().eq(ranks_->own).nonzero()[0].contiguous();
  return std::vector(position.const_data_ptr<std::int64_t>(),
                     position.const_data_ptr<std::int64_t>() + position.numel());
}

DeviceMesh init_device_mesh(const std::vector<std::int64_t>& mesh_shape, const DeviceMeshOptions& options) {
  const bool positive = std::ranges::all_of(mesh_shape, [](auto size) { return size > 0; });
  if (mesh_shape.empty() || !positive) {
    throw_error<ArgumentError>("init_device_mesh: mesh_shape ({}) needs one or more positive sizes",
                               fmt::join(mesh_shape, ", "));
  }
  const auto count =
      std::accumulate(mesh_shape.begin(), mesh_shape.end(), std::int64_t{1}, std::multiplies<>());
  return DeviceMesh(at::arange(count, at::kInt).view(mesh_shape), options);
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) {
  out << fmt::format("DeviceMesh({}), rank {}", joined_shape(mesh), mesh.get_rank());
  const auto coordinate = mesh.get_coordinate();
  if (!coordinate) return out << " is not in it\n";
  out << fmt::format(" at ({})\n", fmt::join(*coordinate, ", "));
  auto names = mesh.mesh_dim_names();
  for (auto i = names.size(); i < coordinate->size(); ++i) names.push_back(fmt::format("dim {}", i));
  const auto ranks = mesh.mesh();
  const auto columns = ranks.size(-1);
  const auto last = names.back();
  names.pop_back();
  for (const auto& name : names) out << fmt::format("{:>6} ", name);
  out << fmt::format("| {:>6}", last);
  for (std::int64_t i = 0; i < columns; ++i) out << fmt::format(" {:>5}", i);
  out << '\n';
  const auto rows = ranks.reshape({-1, columns});
  auto shape = mesh.shape();
  shape.pop_back();
  for (std::int64_t row = 0; row < rows.size(0); ++row) {
    auto block = rows.size(0), rest = row;
    for (const auto size : shape) {
      block /= size;
      out << fmt::format("{:>6} ", rest / block);
      rest %= block;
    }
    out << fmt::format("| {:>6}", "");
    for (const auto rank : runtime::to_vector(rows[row]))
      out << fmt::format(" {:>5}", fmt::format("{}{}", rank, rank == mesh.get_rank() ? "*" : ""));
    out << '\n';
  }
  return out;
}

namespace tensor {

Placement Replicate() { return Placement(Placement::Kind::replicate); }
Placement Shard(std::int64_t dim) { return Placement(Placement::Kind::shard, dim); }
Placement Partial() { return Placement(Placement::Kind::partial); }

}  // namespace tensor
}  // namespace lockstep
