// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>

#include <lockstep/data/loader_position.h>
#include <lockstep/data/modelnet.h>

#include "base/throw_error.h"
#include "data/point_clouds.h"
#include "data/sample_transforms.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHdf5Folder = "modelnet40_ply_hdf5_2048";
constexpr const char* kOffFolder = "ModelNet40";

// The published folder in `root`, or `root` itself; empty when neither has the form.
fs::path folder_with(const fs::path& root, const char* name, bool (*has_form)(const fs::path&)) {
  for (const auto& folder : {root / name, root}) {
    if (has_form(folder)) return folder;
  }
  return {};
}

PointClouds open_clouds(const fs::path& root, const ModelNet40Options& options) {
  if (options.num_points < 1) {
    throw_error<ArgumentError>("ModelNet40: num_points is {}; it should be positive", options.num_points);
  }
  const auto hdf5 = folder_with(root, kHdf5Folder, has_modelnet_hdf5);
  const auto off = folder_with(root, kOffFolder, has_modelnet_off);
  if (!hdf5.empty() && !off.empty()) {
    throw_error<DataError>(
        "{}: has ModelNet40 twice, HDF5 files in {} and OFF meshes in {}; give one of them", root.string(),
        hdf5.string(), off.string());
  }
  if (!hdf5.empty()) return read_modelnet_hdf5(hdf5, options);
  if (!off.empty()) return list_modelnet_off(off, options);
  throw_error<DataError>(
      "{}: is not and does not contain {} (train_files.txt, ply_data_*.h5) or {} "
      "(<class>/<train|test>/*.off); "
      "unpack https://shapenet.cs.stanford.edu/media/{}.zip or https://modelnet.cs.princeton.edu/{}.zip "
      "there",
      root.string(), kHdf5Folder, kOffFolder, kHdf5Folder, kOffFolder);
}

}  // namespace

ModelNet40::ModelNet40(const fs::path& root, ModelNet40Options options)
    : clouds_(std::make_shared<const PointClouds>(open_clouds(root, options))),
      options_(std::move(options)) {}

std::int64_t ModelNet40::size() const { return clouds_->targets.size(0); }

const std::vector<std::string>& ModelNet40::classes() const { return clouds_->classes; }

const at::Tensor& ModelNet40::targets() const { return clouds_->targets; }

Batch ModelNet40::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size());
  if (indices.size(0) == 0) {
    return {.data = at::empty({0, options_.num_points, 3}), .target = at::empty({0}, at::kLong)};
  }
  const auto chosen = indices.accessor<std::int64_t, 1>();
  std::vector<at::Tensor> samples;
  std::vector<at::Tensor> targets;
  for (std::int64_t i = 0; i < chosen.size(0); ++i) {
    const auto generator = sample_generator(chosen[i]);
    const auto points = clouds_->cloud(chosen[i], generator);
    samples.push_back(options_.transform ? (*options_.transform)(points, generator) : points);
    const auto target = clouds_->targets[chosen[i]];
    targets.push_back(options_.target_transform ? options_.target_transform(target) : target);
  }
  return {.data = stack_samples("ModelNet40", samples), .target = stack_samples("target_transform", targets)};
}

}  // namespace lockstep::data
