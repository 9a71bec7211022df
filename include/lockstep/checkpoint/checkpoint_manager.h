// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/serialize/torch_file.h>

namespace lockstep {

/// How the ranks read a checkpoint.
enum class CheckpointReading : std::uint8_t {
  /// Rank 0 reads the file once and broadcasts it.
  broadcast,
  /// Every rank reads the file.
  every_rank,
};

/// Which ranks write a checkpoint.
enum class CheckpointWriting : std::uint8_t {
  /// Rank 0 writes one file, `step-<number>.pt`.
  first_rank,
  /// Every rank writes its parts of each ShardedTensor and a share of the other entries to the folder
  /// `step-<number>`, which distributed_checkpoint and Python's `torch.distributed.checkpoint` read. All
  /// ranks must see the same file system. save() takes a dict on every rank.
  every_rank,
};

/// Options of CheckpointManager.
struct CheckpointManagerOptions {
  /// Number of newest checkpoints to keep; 0 keeps all.
  std::int64_t keep_last = 3;
  /// Number of checkpoints with the best metric to keep in addition.
  std::int64_t keep_best = 1;
  /// Whether a larger metric is better (accuracy) or a smaller one (loss).
  bool higher_is_better = true;
  /// Keep every step that is a multiple of this; 0 disables the rule.
  std::int64_t keep_every = 0;
  /// save() copies the data and returns; a thread writes the copy. At most one copy exists at a time. The
  /// next save() or wait() throws the error of a failed write, on every rank.
  bool async_save = false;
  /// A checkpoint counts as written after data and directory entry have reached the disk.
  bool sync = true;
  /// The ranks that save and load together. Default: the default group or, without one, this process alone.
  std::optional<ProcessGroup> process_group = {};
  CheckpointReading reading = CheckpointReading::broadcast;   ///< which ranks read the files
  CheckpointWriting writing = CheckpointWriting::first_rank;  ///< which ranks write the files
};

/// A checkpoint in the folder.
struct CheckpointInfo {
  std::int64_t step = 0;  ///< step after which it was saved
  /// its file, or its folder where every rank writes
  std::filesystem::path file{};
  /// the number that was given to save()
  std::optional<double> metric{};
};

/// A loaded checkpoint.
struct Checkpoint {
  CheckpointInfo info;  ///< which one it is
  Value contents;       ///< what was given to save()
};

/// Saves, retains and loads the checkpoints of a run in one folder.
///
/// The folder has one file `step-<number>.pt` per checkpoint, in the format of save(), and the symbolic links
/// last.pt and best.pt. With CheckpointWriting::every_rank it has folders `step-<number>`, `last` and `best`.
/// A checkpoint appears under its name only when it is complete, even if ranks are killed at any moment.
///
/// save(), wait(), remove_after() and the load functions are collective. If one rank fails, all ranks throw
/// CheckpointError with the reason and the rank. Not thread-safe.
class CheckpointManager {
 public:
  /// Creates the folder if it does not exist. Throws CheckpointError, and ArgumentError for negative options.
  explicit CheckpointManager(std::filesystem::path folder, const CheckpointManagerOptions& options = {},
                             std::source_location where = std::source_location::current());
  /// Waits for an asynchronous save and logs its error.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Saves `contents` as checkpoint `step`, then applies retention. In `first_rank` mode only rank 0's
  /// contents are used. A metric that is not finite is ignored.
  ///
  /// The newest checkpoint may be replaced. A `step` below it is an error, because load_latest() would return
  /// the other one; damaged checkpoints that this manager has found do not count. The first call removes the
  /// unfinished files of killed writers, so only one process or group may write to a folder; any number may
  /// read. If the folder disappears, every save fails until it is back, because its checkpoints are missing
  /// too.
  ///
  /// With async_save the error of the previous save is thrown after this save has started.
  void save(std::int64_t step, const Value& contents, std::optional<double> metric = std::nullopt,
            std::source_location where = std::source_location::current());
  /// Removes all checkpoints above `step`. Use it to continue from an older one: load(step),
  /// remove_after(step).
  void remove_after(std::int64_t step, std::source_location where = std::source_location::current());
  /// Waits until an asynchronous save has reached the disk. Throws its error.
  void wait(std::source_location where = std::source_location::current());

  /// All checkpoints in the folder, oldest first, damaged ones included. Not collective.
  std::vector<CheckpointInfo> checkpoints() const;

  /// Loads the newest intact checkpoint. Checksums are verified; damaged checkpoints are skipped with a
  /// warning. Returns nullopt when the folder has no checkpoint. Throws when it has some but none can be
  /// loaded, and when one cannot be read (CheckpointReadError: permission, disk, memory): it may be intact,
  /// so an older one must not take its place.
  std::optional<Checkpoint> load_latest(const LoadOptions& options = {},
                                        std::source_location where = std::source_location::current());
  /// Like load_latest(), for the checkpoint with the best metric.
  std::optional<Checkpoint> load_best(const LoadOptions& options = {},
                                      std::source_location where = std::source_location::current());
  /// Loads the checkpoint of one step. Throws when it does not exist or is damaged.
  Checkpoint load(std::int64_t step, const LoadOptions& options = {},
                  std::source_location where = std::source_location::current());

  // Loading into existing values, as distributed_checkpoint::load(contents, folder) does: every rank reads
  // its parts of each ShardedTensor, whichever ranks wrote them. The checkpoints must have been written by
  // every_rank. A single file, an intact checkpoint that does not fit `contents`, and one that cannot be read
  // are errors on all ranks.
  std::optional<CheckpointInfo> load_latest(Dict& contents,
                                            std::source_location where = std::source_location::current());
  std::optional<CheckpointInfo> load_best(Dict& contents,
                                          std::source_location where = std::source_location::current());
  CheckpointInfo load(std::int64_t step, Dict& contents,
                      std::source_location where = std::source_location::current());

  /// The folder of the checkpoints.
  const std::filesystem::path& folder() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Loads a file on all ranks; with `broadcast` only rank 0 reads it. Collective over `process_group`
/// (default: the default group or, without one, this process alone). All ranks throw CheckpointError if one
/// fails. PyTorch has the idiom, not a function.
Value load_on_all(const std::filesystem::path& file, const LoadOptions& options = {},
                  CheckpointReading reading = CheckpointReading::broadcast,
                  const std::optional<ProcessGroup>& process_group = std::nullopt,
                  std::source_location where = std::source_location::current());

/// Gives all ranks the same initial weights and keeps them in a file: rank 0 writes the state dict of
/// `module` to `file`, replacing it, and all ranks load it, buffers included. With `every_rank` each rank
/// reads the file, so all must see it. Collective over `process_group` (default as in load_on_all()). All
/// ranks throw CheckpointError with the rank and the reason if one cannot write, read or load it. PyTorch has
/// the idiom in its DistributedDataParallel tutorial, not a function.
void share_starting_weights(ModuleRef module, const std::filesystem::path& file,
                            CheckpointReading reading = CheckpointReading::broadcast,
                            const std::optional<ProcessGroup>& process_group = std::nullopt,
                            std::source_location where = std::source_location::current());

}  // namespace lockstep
