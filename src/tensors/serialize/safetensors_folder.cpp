// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/safetensors_folder.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "base/throw_error.h"
#include "serialize/byte_source.h"
#include "serialize/torch_format.h"

namespace lockstep::safetensors {
namespace {

using std::filesystem::path;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kLockFile = ".model.safetensors.lock";
constexpr std::chrono::minutes kLongestSave{30};
constexpr std::uintmax_t kLargestIndex = 100'000'000;

// Which file has which tensor.
OrderedJson read_index(const path& file) {
  std::error_code code;
  if (const auto size = std::filesystem::file_size(file, code); code || size > kLargestIndex) {
    throw_error<CheckpointError>(
        "{}: {}", file.string(),
        code ? code.message() : fmt::format("{} bytes are too many for an index", size));
  }
  std::ifstream stream(file);
  auto index = OrderedJson::parse(stream, nullptr, false);
  const auto is_name = [](const OrderedJson& value) {
    return value.is_string() && path(value.get<std::string>()).filename() == value.get<std::string>();
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      !std::ranges::all_of(index["weight_map"], is_name)) {
    throw_error<CheckpointError>(
        "{}: it is not an index of safetensors files: it needs a weight_map from tensors to files of "
        "the same folder",
        file.string());
  }
  return index["weight_map"];
}

// Runs `action`; what the file system refuses is a CheckpointError.
template <typename Action>
void in_folder(const path& folder, const Action& action) {
  try {
    action();
  } catch (const std::system_error& error) {
    throw_error<CheckpointError>("{}: cannot be written: {}", folder.string(),
                                 errno_text(error.code().value()));
  } catch (const TimeoutError& error) {
    throw_error<CheckpointError>("{}: cannot be written: {}", folder.string(), error.what());
  }
}

Dict load_indexed(const path& index, const LoadOptions& options) {
  std::map<std::string, Dict> files;
  Dict tensors;
  const auto file_names = read_index(index);
  for (const auto& [name, value] : file_names.items()) {
    const auto file_name = value.get<std::string>();
    auto file = files.find(file_name);
    if (file == files.end())
      file = files.emplace(file_name, load_file(index.parent_path() / file_name, options)).first;
    auto* const tensor = file->second.find(name);
    if (tensor == nullptr)
      throw_error<CheckpointError>("{}: file {} has no tensor {}", index.string(), file_name,
                                   repr(Value(name), 100));
    tensors.set(name, std::move(*tensor));
  }
  return tensors;
}

}  // namespace

FolderPlan::FolderPlan(const std::vector<TensorSize>& tensors, std::uint64_t max_shard_size) {
  std::vector<std::string> current;
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors) {
    total_size_ += tensor.bytes;
    if (tensor.bytes > max_shard_size) {
      files_.push_back({tensor.name});
      continue;
    }
    if (bytes + tensor.bytes > max_shard_size) {
      files_.push_back(std::exchange(current, {}));
      bytes = 0;
    }
    current.push_back(tensor.name);
    bytes += tensor.bytes;
  }
  if (!current.empty() || files_.empty()) files_.push_back(std::move(current));
}

std::string FolderPlan::file_name(std::size_t file) const {
  if (files_.size() == 1) return kSingleFile;
  return fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files_.size());
}

FolderWrite::FolderWrite(const FolderPlan& plan, path folder, const SaveDirectoryOptions& options)
    : plan_(plan), folder_(std::move(folder)), options_(options) {
  in_folder(folder_, [&] {
    make_folders(folder_, options.sync);
    lock();
    if (std::filesystem::remove(folder_ / kIndexFile) && options.sync) sync_folder(folder_);
  });
}

void FolderWrite::lock() {
  try {
    lock_.emplace(folder_ / kLockFile, Deadline(kLongestSave), "writing " + folder_.string(),
                  FileLock::After::remove_file);
  } catch (const std::filesystem::filesystem_error& error) {
    const auto code = error.code();
    const bool has_no_locks = code == std::errc::function_not_supported ||
                              code == std::errc::operation_not_supported ||
                              code == std::errc::no_lock_available;
    if (!has_no_locks) throw;
    std::filesystem::remove(folder_ / kLockFile);
  }
}

void FolderWrite::write(std::size_t file, const Dict& tensors) const {
  save_file(tensors, folder_ / plan_.file_name(file), {.metadata = options_.metadata, .sync = options_.sync});
}

void FolderWrite::finish() const {
  std::set<std::string> names;
  OrderedJson index{{"metadata", {{"total_size", plan_.total_size()}}},
                    {"weight_map", OrderedJson::object()}};
  for (std::size_t i = 0; i < plan_.files().size(); ++i) {
    names.insert(plan_.file_name(i));
    for (const auto& tensor : plan_.files()[i]) index["weight_map"][tensor] = plan_.file_name(i);
  }
  if (names.size() > 1) {
    const auto text = index.dump(2, ' ', true);
    serialize::replace_file(folder_ / kIndexFile, options_.sync,
                            [&](AtomicFile& file) { file.write(std::as_bytes(std::span(text))); });
  }
  const std::regex ours("model(-[0-9]{5}-of-[0-9]{5})?\\.safetensors");
  in_folder(folder_, [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const auto name = entry.path().filename().string();
      if (std::regex_match(name, ours) && !names.contains(name)) std::filesystem::remove(entry.path());
    }
  });
}

void save_torch_state_dict(const Dict& state_dict, const path& save_directory,
                           const SaveDirectoryOptions& options) {
  const ErrorFile about(save_directory);
  with_source(save_directory.string(), [&] {
    check_tensors(state_dict);
    std::vector<TensorSize> sizes;
    for (const auto& [name, value] : state_dict)
      sizes.push_back({name.as_string(), static_cast<std::uint64_t>(value.as_tensor().nbytes())});
    const FolderPlan plan(sizes, options.max_shard_size);
    const FolderWrite write(plan, save_directory, options);
    for (std::size_t i = 0; i < plan.files().size(); ++i) {
      Dict tensors;
      for (const auto& name : plan.files()[i]) tensors.set(name, state_dict.at(name));
      write.write(i, tensors);
    }
    write.finish();
  });
}

Dict load_torch_state_dict(const path& checkpoint_path, const LoadOptions& options) {
  const ErrorFile about(checkpoint_path);
  std::error_code unreadable;  // reported by the functions that open the file
  if (!std::filesystem::is_directory(checkpoint_path, unreadable)) {
    const bool is_index = checkpoint_path.extension() == ".json";
    return is_index ? load_indexed(checkpoint_path, options) : load_file(checkpoint_path, options);
  }
  const auto index = checkpoint_path / kIndexFile;
  return std::filesystem::exists(index, unreadable) ? load_indexed(index, options)
                                                    : load_file(checkpoint_path / kSingleFile, options);
}

}  // namespace lockstep::safetensors
