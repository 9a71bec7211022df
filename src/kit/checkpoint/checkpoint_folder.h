// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint_manager.h>

#include "checkpoint/folder_use.h"

namespace lockstep::checkpointing {

// The contents of a checkpoint folder. The directory listing determines which checkpoints exist; metrics.json
// only adds their metrics. Errors are CheckpointErrors that name the file. Used by one thread at a time: by
// that of an asynchronous save until it ends.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  // The path of a checkpoint: a file or, `in_parts`, the folder of a distributed checkpoint.
  std::filesystem::path file_of(std::int64_t step, bool in_parts = false) const;
  // Makes a temporary folder for a distributed checkpoint, which nobody takes for a leftover until finish()
  // or remove_unfinished().
  std::filesystem::path new_folder_for(std::int64_t step);
  // Oldest first.
  std::vector<CheckpointInfo> list() const;
  // Creates the folder if it does not exist. Throws if it existed in an earlier call.
  void make(bool sync);
  // Removes the unfinished files and folders of dead writers.
  void remove_leftovers() const;
  void write_metrics(const std::vector<CheckpointInfo>& infos, bool sync) const;
  // Points the link `name`, with the extension of `file`, at a checkpoint, or removes it.
  void link(const std::string& name, const std::optional<std::filesystem::path>& file) const;
  void remove(const CheckpointInfo& info) const;
  // Throws if there is a checkpoint above `step` that is not known to be damaged.
  void check_is_latest(std::int64_t step) const;
  void found_damaged(std::int64_t step) { damaged_.insert(step); }
  void found_whole(std::int64_t step) { damaged_.erase(step); }
  const std::set<std::int64_t>& damaged() const { return damaged_; }
  // Removes a folder that new_folder_for() returned.
  void remove_unfinished(const std::filesystem::path& new_folder);
  // Renames a folder that new_folder_for() returned to `name`. Replaces a checkpoint that another process
  // finished meanwhile.
  void finish(const std::filesystem::path& new_folder, const std::filesystem::path& name, bool sync);

 private:
  void check_has_not_vanished() const;

  std::filesystem::path path_;
  std::optional<FolderUse> unfinished_;
  bool was_there_ = false;
  std::set<std::int64_t> damaged_;
};

// The checkpoints that are not known to be damaged.
std::vector<CheckpointInfo> without(std::vector<CheckpointInfo> infos, const std::set<std::int64_t>& damaged);
// The checkpoints that no retention rule keeps, never the one just saved. Damaged checkpoints do not count as
// newest or best, and are removed when they are older than the newest that are kept.
std::vector<CheckpointInfo> to_remove(const std::vector<CheckpointInfo>& oldest_first,
                                      const std::set<std::int64_t>& damaged, std::int64_t just_saved,
                                      const CheckpointManagerOptions& options);
// Sorted by metric, best first; of equals the newer first. Omits checkpoints without a finite metric.
std::vector<CheckpointInfo> by_metric(std::vector<CheckpointInfo> infos, bool higher_is_better);

}  // namespace lockstep::checkpointing
