// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint_file.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include <fmt/ranges.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/throw_error.h"
#include "leaves.h"
#include "progress.h"
#include "serialize/byte_source.h"

namespace lockstep::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::array<std::string_view, 4> kTorchFiles = {".pt", ".pth", ".bin", ".ckpt"};
constexpr std::string_view kMetadataFile = ".metadata";

bool is_folder(const fs::path& path) {
  std::error_code none;
  return fs::is_directory(path, none);
}

// Whether the file belongs to a checkpoint, finished or not.
bool belongs_to_one(const std::string& name) {
  return name.starts_with("__") || name.starts_with(kMetadataFile);
}

void check_folder_to_write(const fs::path& folder) {
  std::error_code code;
  if (fs::exists(folder, code) && !is_folder(folder))
    throw_error<ArgumentError>("{}: it is a file; give a folder another name", folder.string());
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    const auto name = entry->path().filename().string();
    if (belongs_to_one(name)) continue;
    throw_error<ArgumentError>("{}: it has something else in it, {}; give the checkpoint a folder of its own",
                               folder.string(), name);
  }
}

// The step in a name of CheckpointManager, of eight digits or more; "" for other names.
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

// The newest checkpoint of a CheckpointManager in the folder, or "".
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
  if (fs::exists(folder / kMetadataFile, code)) return;
  const auto newest = newest_in(folder);
  if (newest.empty()) return;
  throw_error<CheckpointError>("{}: it is a folder of checkpoints; name one of them, as in {}",
                               folder.string(), (folder / newest).string());
}

Dict read_folder(const std::filesystem::path& folder, const LoadOptions& options) {
  const distributed_checkpoint::Reader reader(folder);
  const auto progress = reading_progress(folder);
  if (options.verify) reader.verify();
  return reader.read_all(options.map_location);
}

void write_folder(const Value& value, const std::filesystem::path& folder) {
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) {
    throw_error<CheckpointError>(
        "{}: the folder of a distributed checkpoint holds a dict; there is no place for {} {}, so give the "
        "file an extension, as in .pt, or choose a dict with --key",
        folder.string(), value.type_name(), repr(value, 60));
  }
  with_source(folder.string(), [&] { distributed_checkpoint::save(*dict, folder, {.no_dist = true}); });
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
  throw_error<ArgumentError>(
      "{}: its extension does not say what to write; give it one of {}, {}, or none for "
      "the folder of a distributed checkpoint",
      file.string(), kSafetensors, fmt::join(kTorchFiles, ", "));
}

FileKind kind_to_read(const fs::path& file) {
  if (is_folder(file)) {
    check_folder_to_read(file);
    return FileKind::folder;
  }
  return file.extension() == kSafetensors ? FileKind::safetensors : FileKind::torch_file;
}

Checkpoint read_checkpoint(const std::filesystem::path& file, const LoadOptions& options) {
  switch (kind_to_read(file)) {
    case FileKind::folder:
      return {.file = file, .value = read_folder(file, options)};
    case FileKind::torch_file:
      return {.file = file, .value = load(file, options)};
    default:
      return {.file = file,
              .value = safetensors::load_file(file, options),
              .metadata = safetensors::SafeOpen(file, at::kMeta).metadata()};
  }
}

void write_checkpoint(const Value& value, const std::filesystem::path& file,
                      const safetensors::Metadata& metadata) {
  const auto kind = kind_to_write(file);
  const auto progress = writing_progress(file, total_bytes(leaves_of(value)));
  switch (kind) {
    case FileKind::folder:
      return write_folder(value, file);
    case FileKind::torch_file:
      return save(value, file);
    default:
      return safetensors::save_file(value.as_dict(), file, {.metadata = metadata});
  }
}

safetensors::Metadata metadata_of(const Checkpoint& checkpoint) {
  return checkpoint.metadata.empty() ? kUsualMetadata : checkpoint.metadata;
}

}  // namespace lockstep::ckpt
