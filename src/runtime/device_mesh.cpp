// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <numeric>
#include <ostream>
#include <set>

#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/runtime/device_mesh.h>

#include "base/throw_error.h"
#include "runtime/run.h"

namespace lockstep {
namespace runtime {

// What a whole mesh and all its parts share.
struct MeshRanks {
  using Axis = DeviceMesh::Axis;

  at::Tensor ranks;  // int32, contiguous
  int own;
  bool contains_own;
  std::vector<Axis> dimensions = {};
  std::vector<Axis> flattened = {};
};

}  // namespace runtime

namespace {

using Names = std::vector<std::string>;
using Sizes = std::vector<std::int64_t>;

std::vector<int> to_vector(const at::Tensor& ranks) {
  const auto flat = ranks.contiguous();
  return {flat.const_data_ptr<int>(), flat.const_data_ptr<int>() + flat.numel()};
}

std::string text_of(const MeshDim& dim) {
  const auto* name = std::get_if<std::string>(&dim);
  return name != nullptr ? fmt::format("\"{}\"", *name) : fmt::format("{}", std::get<int>(dim));
}

void check_names(const Names& names, std::int64_t ndim) {
  if (names.empty()) return;
  if (static_cast<std::int64_t>(names.size()) != ndim) {
    throw_error<ArgumentError>(
        "DeviceMesh: {} mesh_dim_names ({}) for {} dimensions; give one name for each dimension, or none",
        names.size(), fmt::join(names, ", "), ndim);
  }
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size() ||
      std::ranges::find(names, "") != names.end()) {
    throw_error<ArgumentError>("DeviceMesh: mesh_dim_names ({}) must be different and not empty",
                               fmt::join(names, ", "));
  }
}

at::Tensor checked_ranks(const at::Tensor& mesh, int world_size) {
  if (!mesh.defined() || !at::isIntegralType(mesh.scalar_type(), false) || mesh.numel() == 0) {
    throw_error<ArgumentError>(
        "DeviceMesh: the mesh is a tensor of {} with {} elements; it must hold the ranks as integers",
        mesh.defined() ? mesh.dtype().name() : "no type", mesh.defined() ? mesh.numel() : 0);
  }
  if (mesh.numel() > world_size) {
    throw_error<ArgumentError>("DeviceMesh: a mesh of [{}] has {} ranks; the default group has only {}",
                               fmt::join(mesh.sizes(), ", "), mesh.numel(), world_size);
  }
  auto ranks = mesh.detach().to(at::kCPU, at::kInt, false, /*copy=*/true).contiguous();
  const auto all = to_vector(ranks);
  const std::set<int> distinct(all.begin(), all.end());
  if (distinct.size() != all.size() || *distinct.begin() < 0 || *distinct.rbegin() >= world_size) {
    throw_error<ArgumentError>("DeviceMesh: the mesh holds the ranks {}; they must be distinct, in 0 to {}",
                               fmt::join(all, ", "), world_size - 1);
  }
  return ranks;
}

// The backend of each dimension; "" is that of init().
Names backends_of(const DeviceMeshOptions& options, int ndim) {
  const auto& names = options.mesh_dim_names;
  Names backends(static_cast<std::size_t>(ndim));
  for (const auto& [dim, backend] : options.backend_override) {
    const auto* name = std::get_if<std::string>(&dim);
    const auto place = name == nullptr ? std::get<int>(dim) : std::ranges::find(names, *name) - names.begin();
    const auto count = name == nullptr ? ndim : std::ssize(names);
    if (place < 0 || place >= count) {
      throw_error<ArgumentError>(
          "DeviceMesh: backend_override is for dimension {}; there are dimensions 0 to {} and the names ({})",
          text_of(dim), ndim - 1, fmt::join(names, ", "));
    }
    auto& entry = backends[static_cast<std::size_t>(place)];
    if (!entry.empty()) {
      throw_error<ArgumentError>("DeviceMesh: backend_override has two entries for dimension {}",
                                 text_of(dim));
    }
    entry = backend;
  }
  return backends;
}

// The group of this rank among the rows of `rows`. Every rank makes all of them.
std::optional<ProcessGroup> group_among(const at::Tensor& rows, const std::string& backend,
                                        const std::string& name) {
  auto& run = runtime::require_run("DeviceMesh");
  if (rows.size(1) == run.world().size && backend.empty()) return run.group();
  std::optional<ProcessGroup> own;
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    auto ranks = to_vector(rows[i]);
    std::ranges::sort(ranks);
    if (auto group = run.subgroup(ranks, backend, name)) own = std::move(group);
  }
  return own;
}

// [n, *sizes of the axes]: every part of `ranks` with the dimensions of the axes.
template <class Axes>
at::Tensor parts_of(const at::Tensor& ranks, const Axes& axes) {
  Sizes kept, shape{-1};
  for (const auto& axis : axes) {
    shape.push_back(1);
    for (const auto dim : axis.dims) {
      kept.push_back(dim);
      shape.back() *= ranks.size(dim);
    }
  }
  Sizes order;
  for (std::int64_t dim = 0; dim < ranks.dim(); ++dim)
    if (std::ranges::find(kept, dim) == kept.end()) order.push_back(dim);
  order.insert(order.end(), kept.begin(), kept.end());
  return ranks.permute(order).reshape(shape);
}

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

std::string joined_shape(const DeviceMesh& mesh) {
  const auto names = mesh.mesh_dim_names();
  const auto shape = mesh.shape();
  Names words;
  for (std::size_t i = 0; i < shape.size(); ++i)
    words.push_back(names.empty() ? fmt::format("{}", shape[i]) : fmt::format("{}={}", names[i], shape[i]));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<runtime::MeshRanks> ranks, std::vector<Axis> axes)
    : ranks_(std::move(ranks)), axes_(std::move(axes)) {}

DeviceMesh::DeviceMesh(const at::Tensor& mesh, const DeviceMeshOptions& options) {
  const auto& run = runtime::require_run("DeviceMesh");
  auto ranks = checked_ranks(mesh, run.world().size);
  const auto& names = options.mesh_dim_names;
  check_names(names, ranks.dim());
  const auto backends = backends_of(options, static_cast<int>(ranks.dim()));
  for (std::int64_t dim = 0; dim < ranks.dim(); ++dim) {
    const auto i = static_cast<std::size_t>(dim);
    Axis axis{.name = names.empty() ? "" : names[i], .dims = {dim}, .group = std::nullopt};
    const auto label = names.empty() ? fmt::format("dim_{}", dim) : names[i];
    axis.group = group_among(parts_of(ranks, std::vector{axis}), backends[i], "mesh_" + label);
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
  axis.group = group_among(parts_of(ranks_->ranks, std::vector{axis}), "", "mesh_" + name);
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
    for (const auto rank : to_vector(rows[row]))
      out << fmt::format(" {:>5}", fmt::format("{}{}", rank, rank == mesh.get_rank() ? "*" : ""));
    out << '\n';
  }
  return out;
}

}  // namespace lockstep
