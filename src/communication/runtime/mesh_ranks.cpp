// SPDX-License-Identifier: BSD-3-Clause
#include "runtime/mesh_ranks.h"

#include <algorithm>
#include <ostream>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "runtime/run.h"

namespace lockstep::runtime {
namespace {

using Names = std::vector<std::string>;
using Sizes = std::vector<std::int64_t>;

std::string text_of(const MeshDim& dim) {
  const auto* name = std::get_if<std::string>(&dim);
  return name != nullptr ? fmt::format("\"{}\"", *name) : fmt::format("{}", std::get<int>(dim));
}

}  // namespace

std::vector<int> to_vector(const at::Tensor& ranks) {
  const auto flat = ranks.contiguous();
  return {flat.const_data_ptr<int>(), flat.const_data_ptr<int>() + flat.numel()};
}

void check_mesh_dim_names(const Names& names, std::int64_t ndim) {
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

at::Tensor parts_of(const at::Tensor& ranks, const std::vector<MeshRanks::Axis>& axes) {
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

std::optional<ProcessGroup> make_group(const at::Tensor& ranks, const MeshRanks::Axis& axis,
                                       const std::string& backend) {
  auto& run = require_run("DeviceMesh");
  const auto rows = parts_of(ranks, {axis});
  if (rows.size(1) == run.world().size && backend.empty()) return run.group();
  const auto label = axis.name.empty() ? fmt::format("dim_{}", axis.dims.front()) : axis.name;
  std::optional<ProcessGroup> own;
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    auto members = to_vector(rows[i]);
    std::ranges::sort(members);
    if (auto group = run.new_group(members, {.backend = backend, .group_desc = "mesh_" + label}))
      own = std::move(group);
  }
  return own;
}

std::vector<MeshRanks::Axis> with_parts(const std::vector<MeshRanks::Axis>& axes,
                                        const MeshRanks::Axis& old_axis,
                                        const std::vector<MeshRanks::Axis>& parts) {
  const auto dim = old_axis.dims.front();
  const auto more = std::ssize(parts) - 1;
  std::vector<MeshRanks::Axis> changed;
  for (auto axis : axes) {
    if (axis.name == old_axis.name) {
      changed.insert(changed.end(), parts.begin(), parts.end());
      continue;
    }
    Sizes dims;
    for (const auto old : axis.dims) {
      if (old != dim) dims.push_back(old < dim ? old : old + more);
      for (std::int64_t i = 0; old == dim && i <= more; ++i) dims.push_back(dim + i);
    }
    axis.dims = std::move(dims);
    changed.push_back(std::move(axis));
  }
  return changed;
}

std::string joined_shape(const DeviceMesh& mesh) {
  const auto names = mesh.mesh_dim_names();
  const auto shape = mesh.shape();
  std::vector<std::string> words;
  for (std::size_t i = 0; i < shape.size(); ++i)
    words.push_back(names.empty() ? fmt::format("{}", shape[i]) : fmt::format("{}={}", names[i], shape[i]));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace lockstep::runtime

namespace lockstep {

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) {
  out << fmt::format("DeviceMesh({}), rank {}", runtime::joined_shape(mesh), mesh.get_rank());
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

}  // namespace lockstep
