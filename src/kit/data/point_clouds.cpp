// SPDX-License-Identifier: BSD-3-Clause
#include "data/point_clouds.h"

#include <algorithm>
#include <array>
#include <system_error>

#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <lockstep/data/images.h>

#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/folder_listing.h"
#include "data/hdf5_data_set.h"

namespace lockstep::data {

// The form of ModelNet40 that PointNet and DGCNN use: modelnet40_ply_hdf5_2048.
namespace {

namespace fs = std::filesystem;

fs::path list_of_split(const fs::path& folder, bool train) {
  return folder / (train ? "train_files.txt" : "test_files.txt");
}

bool is_file_of_split(const fs::path& file, bool train) {
  return file.extension() == ".h5" &&
         file.filename().string().starts_with(train ? "ply_data_train" : "ply_data_test");
}

// The lines that are not blank, without blanks around them.
std::vector<std::string> lines_of(const fs::path& file) {
  const ErrorFile about(file);
  constexpr std::string_view kSpaces = " \t\r\v\f";
  const auto bytes = read_file(file);
  auto left = as_text(bytes);
  std::vector<std::string> lines;
  while (!left.empty()) {
    auto line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(line.size() + 1, left.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kSpaces), line.size()));
    if (!line.empty()) lines.emplace_back(line.substr(0, line.find_last_not_of(kSpaces) + 1));
  }
  return lines;
}

// The published lists name the files by a path from the folder of PointNet's code.
std::vector<fs::path> files_of_split(const fs::path& folder, bool train) {
  std::vector<fs::path> files;
  if (const auto list = list_of_split(folder, train); fs::exists(list)) {
    for (const auto& line : lines_of(list)) files.push_back(folder / fs::path(line).filename());
  } else {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (is_file_of_split(entry.path(), train)) files.push_back(entry.path());
    }
    std::ranges::sort(files);
  }
  if (files.empty()) {
    throw_error<DataError>("{}: has no {} files of ModelNet40", folder.string(), train ? "training" : "test");
  }
  return files;
}

at::Tensor read_points(const fs::path& file, std::int64_t num_points) {
  const ErrorFile about(file);
  const Hdf5DataSet points(file, "data");
  const auto& shape = points.shape();
  if (shape.size() != 3 || shape[2] != 3) {
    throw_error<DataError>("{}: data set \"data\": its shape is [{}]; it should be [clouds, points, 3]",
                           file.string(), fmt::join(shape, ", "));
  }
  if (shape[1] < num_points) {
    throw_error<DataError>("{}: data set \"data\": its clouds have {} points, fewer than num_points = {}",
                           file.string(), shape[1], num_points);
  }
  return points.read(at::kFloat, {shape[0], num_points, 3});
}

at::Tensor read_labels(const fs::path& file, std::int64_t clouds, const std::vector<std::string>& classes) {
  const ErrorFile about(file);
  const Hdf5DataSet set(file, "label");
  const auto& shape = set.shape();
  const bool is_column = shape.size() == 2 && shape[1] == 1;
  if ((shape.size() != 1 && !is_column) || shape[0] != clouds) {
    throw_error<DataError>(
        "{}: data set \"label\": its shape is [{}]; it should be [{}, 1], for the clouds of \"data\"",
        file.string(), fmt::join(shape, ", "), clouds);
  }
  auto labels = set.read(at::kLong, shape).view(-1);
  const auto* begin = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < clouds; ++i) {
    if (begin[i] >= 0 && (classes.empty() || begin[i] < std::ssize(classes))) continue;
    throw_error<DataError>(
        "{}: data set \"label\": label {} of cloud {} {}", file.string(), begin[i], i,
        classes.empty() ? "is negative" : fmt::format("is not one of the {} classes", classes.size()));
  }
  return labels;
}

}  // namespace

bool has_modelnet_hdf5(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    for (const bool train : {true, false}) {
      if (entry->path() == list_of_split(folder, train) || is_file_of_split(entry->path(), train))
        return true;
    }
  }
  return false;
}

PointClouds read_modelnet_hdf5(const fs::path& folder, const ModelNet40Options& options) {
  PointClouds clouds;
  if (const auto names = folder / "shape_names.txt"; fs::exists(names)) clouds.classes = lines_of(names);
  std::vector<at::Tensor> points;
  std::vector<at::Tensor> targets;
  for (const auto& file : files_of_split(folder, options.train)) {
    points.push_back(read_points(file, options.num_points));
    targets.push_back(read_labels(file, points.back().size(0), clouds.classes));
  }
  clouds.targets = at::cat(targets);
  clouds.cloud = [all = at::cat(points)](std::int64_t index, const auto&) { return all[index].clone(); };
  return clouds;
}

// Princeton's form of ModelNet40: meshes <class>/<train|test>/<name>.off.
namespace {

constexpr std::array kSplits{"train", "test"};

// Files that begin with a dot are macOS's notes about others.
bool is_mesh(const fs::path& file) {
  return file.extension() == ".off" && !file.filename().string().starts_with('.');
}

bool has_mesh(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_mesh(entry->path())) return true;
  }
  return false;
}

bool is_class(const fs::path& folder) {
  return std::ranges::any_of(kSplits, [&](const char* split) { return has_mesh(folder / split); });
}

FolderClasses find_mesh_classes(const fs::path& root) {
  FolderClasses found;
  for (const auto& name : find_classes(root).classes) {
    if (!is_class(root / name)) continue;
    found.class_to_idx.emplace(name, static_cast<std::int64_t>(found.classes.size()));
    found.classes.push_back(name);
  }
  return found;
}

at::Tensor points_of(const fs::path& file, std::int64_t num_points,
                     const transforms::OptionalGenerator& generator) {
  const auto mesh = read_off(file);
  try {
    return sample_points(mesh, num_points, generator);
  } catch (const ArgumentError& error) {
    throw_error<DataError>("{}: {}", file.string(), error.what());
  }
}

}  // namespace

bool has_modelnet_off(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_class(entry->path())) return true;
  }
  return false;
}

PointClouds list_modelnet_off(const fs::path& folder, const ModelNet40Options& options) {
  const auto* const split = kSplits[options.train ? 0 : 1];
  const auto in_split = [split](const fs::path& file) {
    return is_mesh(file) && file.parent_path().filename() == split;
  };
  const auto listing = std::make_shared<FolderListing>(list_folder(
      folder, {.is_valid_file = in_split, .allow_empty = true, .find_classes = find_mesh_classes}));
  if (listing->size() == 0) {
    throw_error<DataError>("{}: no class has OFF files in its folder {}", folder.string(), split);
  }
  return {.classes = listing->classes.classes,
          .targets = listing->targets(),
          .cloud = [listing, num_points = options.num_points](std::int64_t index, const auto& generator) {
            return points_of(listing->path(static_cast<std::size_t>(index)), num_points, generator);
          }};
}

}  // namespace lockstep::data
