// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/serialize/safetensors.h>

#include "base/file_lock.h"

// A state dict in one or several files of a folder, as huggingface_hub's save_torch_state_dict() writes it.
namespace lockstep::safetensors {

struct TensorSize {
  std::string name;
  std::uint64_t bytes = 0;
};

// Which tensors each file has.
class FolderPlan {
 public:
  // Files of at most `max_shard_size` bytes of data each, in the order of the tensors; a larger tensor has a
  // file of its own.
  FolderPlan(const std::vector<TensorSize>& tensors, std::uint64_t max_shard_size);

  // [i]: the names of the tensors of file i; at least one file.
  const std::vector<std::vector<std::string>>& files() const { return files_; }
  // "model.safetensors", or "model-00001-of-00003.safetensors" for file 0 of 3.
  std::string file_name(std::size_t file) const;
  std::uint64_t total_size() const { return total_size_; }

 private:
  std::vector<std::vector<std::string>> files_;
  std::uint64_t total_size_ = 0;
};

// Writing the files of a plan to a folder, one writer at a time: a folder has the files of one state dict.
// On a file system without locks writers do not wait.
class FolderWrite {
 public:
  // Waits until nobody else writes there. Removes the index of an earlier state dict, so that it never names
  // new files. Throws CheckpointError, even if another writer takes longer than half an hour.
  FolderWrite(const FolderPlan& plan, std::filesystem::path folder, const SaveDirectoryOptions& options);
  void write(std::size_t file, const Dict& tensors) const;
  // After all files: writes the index, and removes the files that it does not name.
  void finish() const;

 private:
  void lock();

  const FolderPlan& plan_;
  std::filesystem::path folder_;
  const SaveDirectoryOptions& options_;
  std::optional<FileLock> lock_{};
};

// Throws what save_file() throws for the tensors.
void check_tensors(const Dict& tensors);

}  // namespace lockstep::safetensors
