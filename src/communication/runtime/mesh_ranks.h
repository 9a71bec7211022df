// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/device_mesh.h>

namespace lockstep::runtime {

// What a whole mesh and all its parts share.
struct MeshRanks {
  using Axis = DeviceMesh::Axis;  // which is private

  at::Tensor ranks;  // int32, contiguous
  int own;
  bool contains_own;
  std::vector<Axis> dimensions = {};
  std::vector<Axis> flattened = {};
};

// Throws ArgumentError unless there are no names or `ndim` different ones.
void check_mesh_dim_names(const std::vector<std::string>& names, std::int64_t ndim);
// A copy of the ranks as MeshRanks has them. Throws ArgumentError unless they are distinct ranks of the run.
at::Tensor checked_ranks(const at::Tensor& mesh, int world_size);
// The backend of each dimension; "" is that of init(). Throws ArgumentError for a dimension that is not
// there.
std::vector<std::string> backends_of(const DeviceMeshOptions& options, int ndim);

// [n, *sizes of the axes]: every part of `ranks` with the dimensions of the axes.
at::Tensor parts_of(const at::Tensor& ranks, const std::vector<MeshRanks::Axis>& axes);
// The group of this rank among the rows of the axis. Every rank makes all of them.
std::optional<ProcessGroup> make_group(const at::Tensor& ranks, const MeshRanks::Axis& axis,
                                       const std::string& backend = {});

// Replaces `old_axis`, a dimension of the whole mesh, and counts the later dimensions on.
std::vector<MeshRanks::Axis> with_parts(const std::vector<MeshRanks::Axis>& axes,
                                        const MeshRanks::Axis& old_axis,
                                        const std::vector<MeshRanks::Axis>& parts);

std::vector<int> to_vector(const at::Tensor& ranks);
// "dp=2, tp=4"
std::string joined_shape(const DeviceMesh& mesh);

}  // namespace lockstep::runtime
