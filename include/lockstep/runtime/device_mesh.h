// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

namespace runtime {
struct MeshRanks;
}

/// A dimension of a DeviceMesh: its number, 0 .. ndim()-1, or its name.
using MeshDim = std::variant<int, std::string>;

/// Options of init_device_mesh().
struct DeviceMeshOptions {
  /// A name for each dimension, all different; empty: the dimensions have no names.
  std::vector<std::string> mesh_dim_names = {};
  /// The backend of a dimension's groups, e.g. {{"tp", "shm"}}; the others have that of init(). PyTorch:
  /// `backend_override`.
  std::map<MeshDim, std::string> backend_override = {};
};

/// The ranks of a run in an n-dimensional array, with a process group for each row of each dimension.
/// PyTorch: `torch.distributed.device_mesh.DeviceMesh`.
///
/// Rank r is in the array [[0, 1, 2], [3, 4, 5]] in one group of dimension 0, {r % 3, r % 3 + 3}, and in one
/// of dimension 1. Copies refer to the same groups. The groups end with the context of init().
///
/// Every rank of the default group makes and flattens meshes in the same order with the same arguments, also
/// ranks that are not in the mesh. These have no groups and no coordinate. Threads: as for ProcessGroup.
class DeviceMesh {
 public:
  /// `mesh`: integers, the global ranks, each once. A dimension that covers the whole run has the default
  /// group; the ranks of the other groups are in ascending order of the global ranks. Throws ArgumentError.
  explicit DeviceMesh(const at::Tensor& mesh, const DeviceMeshOptions& options = {},
                      std::source_location where = std::source_location::current());

  /// The one-dimensional mesh of a group's ranks. Makes no group, so only the group's ranks call it; with
  /// other ranks in the run, flatten() and unflatten() of it are not possible. `mesh`:
  /// if given, these ranks. Throws ArgumentError. PyTorch: `from_group`.
  static DeviceMesh from_group(const ProcessGroup& group,
                               const std::optional<at::Tensor>& mesh = std::nullopt,
                               const std::vector<std::string>& mesh_dim_names = {},
                               std::source_location where = std::source_location::current());
  /// A mesh of several dimensions: groups[i] has the ranks of this rank's row of `mesh` in dimension i.
  static DeviceMesh from_group(const std::vector<ProcessGroup>& groups, const at::Tensor& mesh,
                               const std::vector<std::string>& mesh_dim_names,
                               std::source_location where = std::source_location::current());

  /// The part of the mesh with these dimensions, in their order in the mesh, that contains this rank:
  /// `mesh["tp"]`, `mesh[{"dp", "tp"}]`. The whole mesh also has the names of flatten(). Makes no group.
  /// Throws ArgumentError for a name that does not exist and for dimensions that overlap or are in another
  /// order.
  DeviceMesh operator[](const std::string& mesh_dim_name) const;
  DeviceMesh operator[](std::initializer_list<std::string> mesh_dim_names) const;
  DeviceMesh operator[](const std::vector<std::string>& mesh_dim_names) const;

  /// All dimensions as one. The name is by default that of the dimensions, joined by "_"; a second call with
  /// it returns the same groups. Throws ArgumentError for a name that the whole mesh has for other ranks.
  /// PyTorch: `_flatten`.
  DeviceMesh flatten(const std::string& mesh_dim_name = {},
                     std::source_location where = std::source_location::current()) const;

  /// Dimension `dim` as several of `mesh_sizes`, whose product is its size, with new groups for these. The
  /// result is a whole mesh, or the same slice of one; this mesh stays as it is. Throws ArgumentError, also
  /// for a dimension of flatten(). PyTorch: `_unflatten`.
  DeviceMesh unflatten(const MeshDim& dim, const std::vector<std::int64_t>& mesh_sizes,
                       const std::vector<std::string>& mesh_dim_names,
                       const std::map<MeshDim, std::string>& backend_override = {},
                       std::source_location where = std::source_location::current()) const;

  /// The group of this rank in a dimension of the mesh or with a name of flatten(). Without an argument the
  /// mesh must have one dimension. Throws ArgumentError, also on a rank that is not in the mesh.
  ProcessGroup get_group(const std::optional<MeshDim>& mesh_dim = std::nullopt,
                         std::source_location where = std::source_location::current()) const;
  /// The groups of this rank in all dimensions; none on a rank that is not in the mesh.
  std::vector<ProcessGroup> get_all_groups() const;

  int get_rank() const;  ///< of this process in the default group
  /// The rank of this process within get_group(mesh_dim).
  int get_local_rank(const std::optional<MeshDim>& mesh_dim = std::nullopt,
                     std::source_location where = std::source_location::current()) const;
  /// The position of this rank in mesh(), one number for each dimension; nullopt if it is not in it.
  std::optional<std::vector<std::int64_t>> get_coordinate() const;

  std::int64_t size() const;                        ///< number of ranks
  std::int64_t size(const MeshDim& dim) const;      ///< of one dimension
  std::int64_t ndim() const;                        ///< number of dimensions
  std::vector<std::int64_t> shape() const;          ///< the size of each dimension
  std::vector<std::string> mesh_dim_names() const;  ///< empty without names
  /// The global ranks: int32 on the CPU, of shape(). Throws ArgumentError on a rank that is not in a mesh of
  /// which this is a part.
  at::Tensor mesh() const;

  /// The ranks as a table with a row for each place in the dimensions before the last; this rank has a `*`.
  friend std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

 private:
  // A dimension of the whole mesh, or several that are flattened.
  struct Axis {
    std::string name;
    std::vector<std::int64_t> dims;     // of the whole mesh
    std::optional<ProcessGroup> group;  // of this rank
  };

  DeviceMesh(std::shared_ptr<runtime::MeshRanks> ranks, std::vector<Axis> axes);
  const Axis& axis(const MeshDim& dim) const;
  const Axis& find_axis(const std::string& name) const;
  const Axis& only_axis(const char* caller, const std::optional<MeshDim>& mesh_dim) const;
  bool is_whole() const;
  at::Tensor parts() const;

  friend struct runtime::MeshRanks;

  std::shared_ptr<runtime::MeshRanks> ranks_;
  std::vector<Axis> axes_;
};

/// The mesh of the ranks 0, 1, 2, ... in row-major order; their number is the product of `mesh_shape`, and
/// not more than that of the run. PyTorch: `torch.distributed.device_mesh.init_device_mesh`.
DeviceMesh init_device_mesh(const std::vector<std::int64_t>& mesh_shape,
                            const DeviceMeshOptions& options = {},
                            std::source_location where = std::source_location::current());
/// Takes PyTorch's first argument, the type of the devices: "cpu", or that of this rank's device, e.g.
/// "cuda"; ArgumentError for another. It changes nothing, as a group of init() serves all its device types.
DeviceMesh init_device_mesh(std::string_view device_type, const std::vector<std::int64_t>& mesh_shape,
                            const DeviceMeshOptions& options = {},
                            std::source_location where = std::source_location::current());
/// Takes the names of the dimensions in braces, as PyTorch's keyword argument has them:
/// `init_device_mesh("cpu", {2, 2}, {"dp", "tp"})`.
template <std::same_as<const char*> Name>
DeviceMesh init_device_mesh(std::string_view device_type, const std::vector<std::int64_t>& mesh_shape,
                            std::initializer_list<Name> mesh_dim_names,
                            std::source_location where = std::source_location::current()) {
  return init_device_mesh(device_type, mesh_shape,
                          DeviceMeshOptions{.mesh_dim_names = {mesh_dim_names.begin(), mesh_dim_names.end()}},
                          where);
}

/// Seeds a rank of a mesh. Ranks draw apart if their coordinates differ in one of the dimensions `apart`, and
/// alike otherwise. On a mesh, dropout draws apart on ranks with other samples, positions or layers. No rank
/// gets `seed` itself, so the streams differ from that of a module made with it:
///
///     torch::manual_seed(seed);
///     Net net;
///     manual_seed(seed, mesh, {"dp", "pp"});
///
/// Throws ArgumentError for a dimension that the mesh does not have. Not in PyTorch.
void manual_seed(std::uint64_t seed, const DeviceMesh& mesh, const std::vector<std::string>& apart,
                 std::source_location where = std::source_location::current());

/// PyTorch: `torch.distributed.tensor`.
namespace tensor {

/// How the ranks of a mesh hold a tensor. PyTorch: `torch.distributed.tensor.Placement`.
class Placement {
 public:
  /// How the ranks of a mesh hold a tensor.
  enum class Kind {
    replicate,  ///< every rank holds the whole tensor
    shard,      ///< every rank holds a part of one dimension
    partial,    ///< the tensor is the sum over the ranks
  };

  /// Replicated, cut or partial.
  Kind kind() const { return kind_; }
  std::int64_t dim() const { return dim_; }  ///< of shard; negative: from the end
  bool operator==(const Placement&) const = default;

 private:
  friend Placement Replicate();
  friend Placement Shard(std::int64_t dim);
  friend Placement Partial();
  explicit Placement(Kind kind, std::int64_t dim = 0) : kind_(kind), dim_(dim) {}

  Kind kind_;
  std::int64_t dim_;
};

Placement Replicate();              ///< every rank has the whole tensor
Placement Shard(std::int64_t dim);  ///< rank r has the r-th part of dimension `dim`
Placement Partial();                ///< the tensor is the sum of all ranks' tensors

}  // namespace tensor
}  // namespace lockstep
