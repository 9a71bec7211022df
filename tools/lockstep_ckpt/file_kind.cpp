// SPDX-License-Identifier: BSD-3-Clause
#include "file_kind.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::array<std::string_view, 4> kTorchFiles = {".pt", ".pth", ".bin", ".ckpt"};
constexpr std::string_view kTable = ".metadata";

bool is_folder(const fs::path& path) {
  std::error_code none;
  return fs::is_directory(path, none);
}

// Of a checkpoint, finished or not.
bool belongs_to_one(const std::string& name) { return name.starts_with("__") || name.starts_with(kTable); }

void check_folder_to_write(const fs::path& folder) {
  std::error_code code;
  if (fs::exists(folder, code) && !is_folder(folder))
    throw ArgumentError(fmt::format("{}: it is a file; give a folder another name", folder.string()));
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    const auto name = entry->path().filename().string();
    if (belongs_to_one(name)) continue;
    throw ArgumentError(
        fmt::format("{}: it has something else in it, {}; give the checkpoint a folder of its own",
                    folder.string(), name));
  }
}

// Its number, which has eight digits or more; "" when it is no checkpoint of a CheckpointManager.
std::string step_in(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return "";
  const auto end = name.ends_with(".pt") ? name.size() - 3 : name.size();
  const auto step = name.substr(prefix.size(), end - prefix.size());
  return step.find_first_not_of("0123456789") == std::string::npos ? step : "";
}

bool is_older(const std::string& name, const std::string& other) {
  const auto step = step_in(name);
  const auto other_step = step_in(other);
  return step.size() != other_step.size() ? step.size() < other_step.size() : step < other_step;
}

// The newest of those that a CheckpointManager keeps there; "" when there is none.
std::string newest_in(const fs::path& folder) {
  std::error_code code;
  std::string newest;
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    const auto name = entry->path().filename().string();
    if (is_older(newest, name)) newest = name;
  }
  return newest;
}

void check_folder_to_read(const fs::path& folder) {
  std::error_code code;
  if (fs::exists(folder / kTable, code)) return;
  const auto newest = newest_in(folder);
  if (newest.empty()) return;
  throw CheckpointError(fmt::format("{}: it is a folder of checkpoints; name one of them, as in {}",
                                    folder.string(), (folder / newest).string()));
}

}  // namespace

FileKind kind_to_write(const fs::path& file) {
  const auto extension = file.extension().string();
  if (extension == kSafetensors) return FileKind::safetensors;
  if (std::ranges::find(kTorchFiles, extension) != kTorchFiles.end()) return FileKind::torch_file;
  if (extension.empty() || is_folder(file)) {
    check_folder_to_write(file);
    return FileKind::folder;
  }
  throw ArgumentError(
      fmt::format("{}: its extension does not say what to write; give it one of {}, {}, or none for "
                  "the folder of a distributed checkpoint",
                  file.string(), kSafetensors, fmt::join(kTorchFiles, ", ")));
}

FileKind kind_to_read(const fs::path& file) {
  if (is_folder(file)) {
    check_folder_to_read(file);
    return FileKind::folder;
  }
  return file.extension() == kSafetensors ? FileKind::safetensors : FileKind::torch_file;
}

}  // namespace lockstep::ckpt
