// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint_manager.h>

namespace lockstep::checkpointing {

/// The names in a folder of checkpoints. What is there is what the folder shows; the file metrics.json only
/// says which metric each has. Errors are CheckpointErrors naming the file. What is known as damaged is for
/// one thread at a time: that of an asynchronous save until it has ended, then the caller's.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  /// Of a checkpoint in one file; `in_parts`: of the folder of a distributed one.
  std::filesystem::path file_of(std::int64_t step, bool in_parts = false) const;
  /// The folder where a distributed one comes into being; what is there is removed.
  std::filesystem::path new_folder_for(std::int64_t step) const;
  /// Oldest first.
  std::vector<CheckpointInfo> list() const;
  /// Makes the folder where it is missing. One that an earlier call found there is an error when it is gone.
  void make(bool sync);
  /// Of writers that were killed.
  void remove_leftovers() const;
  void write_metrics(const std::vector<CheckpointInfo>& infos, bool sync) const;
  /// Points `name`, with the ending of the file, at a checkpoint, or removes it.
  void link(const std::string& name, const std::optional<std::filesystem::path>& file) const;
  void remove(const CheckpointInfo& info) const;
  /// Throws when there is a checkpoint above `step` that found_damaged() was not told of.
  void check_is_latest(std::int64_t step) const;
  void found_damaged(std::int64_t step) { damaged_.insert(step); }
  void found_whole(std::int64_t step) { damaged_.erase(step); }
  const std::set<std::int64_t>& damaged() const { return damaged_; }
  /// What new_folder_for() gave, and nothing else.
  void remove_unfinished(const std::filesystem::path& new_folder) const;
  /// Gives what was made in new_folder_for() its name.
  void finish(const std::filesystem::path& new_folder, bool sync) const;

 private:
  void check_has_not_vanished() const;

  std::filesystem::path path_;
  bool was_there_ = false;
  std::set<std::int64_t> damaged_;
};

/// Those that are not known as damaged.
std::vector<CheckpointInfo> without(std::vector<CheckpointInfo> infos, const std::set<std::int64_t>& damaged);
/// Those that no rule of `options` keeps; that which was saved last is never one of them. Damaged ones take
/// no place among the newest and the best, and go once they are older than the newest that stay.
std::vector<CheckpointInfo> to_remove(const std::vector<CheckpointInfo>& oldest_first,
                                      const std::set<std::int64_t>& damaged, std::int64_t just_saved,
                                      const CheckpointManagerOptions& options);
/// Best first; those without a metric, or with one that is not finite, are left out. Of equals the newer is
/// the better.
std::vector<CheckpointInfo> by_metric(std::vector<CheckpointInfo> infos, bool higher_is_better);

}  // namespace lockstep::checkpointing
