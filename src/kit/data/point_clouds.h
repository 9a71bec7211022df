// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/data/vision.h>

namespace lockstep::data {

// One split of ModelNet40 in either form.
struct PointClouds {
  std::vector<std::string> classes{};
  at::Tensor targets{};  // int64 [n]
  // The points of a sample, float32 [num_points, 3], in memory of their own.
  std::function<at::Tensor(std::int64_t, const transforms::OptionalGenerator&)> cloud{};
};

bool has_modelnet_hdf5(const std::filesystem::path& folder);
PointClouds read_modelnet_hdf5(const std::filesystem::path& folder, const ModelNet40Options& options);

bool has_modelnet_off(const std::filesystem::path& folder);
PointClouds list_modelnet_off(const std::filesystem::path& folder, const ModelNet40Options& options);

}  // namespace lockstep::data
