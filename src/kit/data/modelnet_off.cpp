// SPDX-License-Identifier: BSD-3-Clause
// Princeton's form of ModelNet40: meshes <class>/<train|test>/<name>.off.
#include <algorithm>
#include <array>
#include <system_error>

#include "base/throw_error.h"
#include "data/folder_listing.h"
#include "data/point_clouds.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

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
