// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>
#include <lockstep/transforms/transform.h>

namespace lockstep::data {

/// A surface of triangles.
struct Mesh {
  at::Tensor vertices;   ///< float32 [n, 3]
  at::Tensor triangles;  ///< int64 [m, 3], indices of vertices
};

/// The mesh of an OFF file (text). A polygon of k vertices becomes k - 2 triangles around its first vertex.
/// Comments, blank lines, colors of faces, and a header without a line break ("OFF490 518 0", which
/// ModelNet40 has) are accepted. Throws DataError naming file and line. PyTorch Geometric: `io.read_off`.
Mesh read_off(const std::filesystem::path& file);

/// Points on the surface, drawn with a density that is equal everywhere: float32 [num_points, 3]. Draws what
/// PyTorch Geometric's SamplePoints draws: multinomial(areas, num_points) for the triangles, then
/// rand(num_points, 2) for the places in them. Throws ArgumentError for a mesh of other shapes or dtypes,
/// with a triangle whose vertex does not exist, without area, or with more than 2^24 triangles, and when
/// num_points is not positive.
at::Tensor sample_points(const Mesh& mesh, std::int64_t num_points,
                         const transforms::OptionalGenerator& generator = {});

/// Moves the center of the points to 0 and scales them into the unit sphere, as the HDF5 files of ModelNet40
/// were. `points` float32 [n, 3]. PointNet: `pc_normalize`.
at::Tensor normalize_point_cloud(const at::Tensor& points);

/// x * scale + shift for a scale in [2/3, 3/2) and a shift in [-0.2, 0.2) per axis. Draws
/// empty(3).uniform_(2/3, 3/2), then empty(3).uniform_(-0.2, 0.2). DGCNN: `translate_pointcloud`, which draws
/// the same distributions from NumPy.
at::Tensor translate_point_cloud(const at::Tensor& points,
                                 const transforms::OptionalGenerator& generator = {});

/// The points in a random order: draws randperm(n). DGCNN: `np.random.shuffle(pointcloud)`.
at::Tensor shuffle_points(const at::Tensor& points, const transforms::OptionalGenerator& generator = {});

struct ModelNet40Options {
  bool train = true;  ///< the training clouds, or the test clouds
  /// Points of a cloud: the first ones of an HDF5 cloud (of 2048), or drawn by sample_points() from a mesh.
  std::int64_t num_points = 1024;
  /// Applied to each cloud: any callable `at::Tensor(const at::Tensor&)`, or one that takes a generator too,
  /// such as translate_point_cloud.
  std::optional<transforms::Transform> transform = {};
  /// Applied to each target.
  TargetTransform target_transform = {};
};

struct PointClouds;

/// Shapes of 40 classes: clouds float32 [batch, num_points, 3], targets int64 [batch].
///
///     ModelNet40 train("data", {.transform = [](const auto& points, const auto& generator) {
///       return shuffle_points(translate_point_cloud(points, generator), generator);
///     }});
///
/// `root` is, or contains, one of two folders:
///
/// - modelnet40_ply_hdf5_2048, PointNet's and DGCNN's HDF5 files. train_files.txt and test_files.txt give
///   the files and their order; without them, ply_data_train*.h5 and ply_data_test*.h5 are taken in the order
///   of their names. The constructor reads all clouds. It needs a Lockstep that was built with
///   LOCKSTEP_WITH_HDF5. HDF5 is called by one thread of Lockstep at a time; do not call it yourself
///   meanwhile where your libhdf5 is not thread-safe.
/// - ModelNet40, Princeton's meshes <class>/<train|test>/<name>.off, ordered by class and name. get_batch()
///   reads the meshes and draws points from them. Their coordinates have any scale: see
///   normalize_point_cloud().
///
/// Sampling, then the transform, draw from sample_generator(index) where the loader has an augmentation_seed.
/// get_batch() is thread-safe if the transforms are. Copies share the clouds.
class ModelNet40 {
 public:
  /// Throws DataError naming the folder or the file and the data set: missing, in both forms, damaged, of
  /// other shapes or dtypes. Throws ArgumentError when num_points is not positive.
  explicit ModelNet40(const std::filesystem::path& root, ModelNet40Options options = {});

  std::int64_t size() const;
  /// Throws ArgumentError when an index is out of range, and DataError naming a mesh that cannot be read.
  Batch get_batch(const at::Tensor& indices) const;
  /// The name of each target; empty for HDF5 files without shape_names.txt.
  const std::vector<std::string>& classes() const;
  /// The targets of all samples, before target_transform: int64 [size()].
  const at::Tensor& targets() const;

 private:
  std::shared_ptr<const PointClouds> clouds_;
  ModelNet40Options options_;
};

}  // namespace lockstep::data
