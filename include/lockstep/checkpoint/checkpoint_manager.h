// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/torch_file.h>

namespace lockstep {

/// How ranks get what is in a checkpoint.
enum class CheckpointReading : std::uint8_t {
  /// Rank 0 reads, the others receive it piece by piece: the file system is asked once.
  broadcast,
  /// Every rank reads for itself, at the same time.
  every_rank,
};

/// Who writes.
enum class CheckpointWriting : std::uint8_t {
  /// Rank 0, one file: `step-<number>.pt`.
  first_rank,
  /// Every rank what it has of each ShardedTensor and a share of the rest, into the folder `step-<number>`,
  /// which distributed_checkpoint and Python's `torch.distributed.checkpoint` read. All ranks must see the
  /// same folders. save() takes a dict, on every rank.
  every_rank,
};

struct CheckpointManagerOptions {
  /// So many of the newest stay; 0: all.
  std::int64_t keep_last = 3;
  /// So many of those with the best metric stay besides.
  std::int64_t keep_best = 1;
  /// The larger metric is the better one (accuracy); false: the smaller (loss).
  bool higher_is_better = true;
  /// Every step that is a multiple of this stays for good; 0: none.
  std::int64_t keep_every = 0;
  /// save() returns once it has a copy of the data, which a thread then writes; one at a time, so one copy at
  /// most is in memory. A failure comes out of the next save() or wait(), on every rank.
  bool async_save = false;
  /// Data and name have reached the disk when a checkpoint counts as written.
  bool sync = true;
  /// Whose ranks save and load together; not given: the default group where there is one, else this process
  /// alone.
  std::optional<ProcessGroup> group = {};
  CheckpointReading reading = CheckpointReading::broadcast;
  CheckpointWriting writing = CheckpointWriting::first_rank;
};

struct CheckpointInfo {
  std::int64_t step = 0;
  std::filesystem::path file{};
  std::optional<double> metric{};
};

struct Checkpoint {
  CheckpointInfo info;
  Value contents;
};

/// A folder of checkpoints: `step-<number>.pt`, each a file as save() writes it, which Python's torch.load
/// opens, and the links last.pt and best.pt; or folders `step-<number>`, last and best, where every rank
/// writes. A checkpoint is whole under its name or not there, also when ranks are killed at any moment.
///
/// save(), wait(), remove_after() and the loading functions are called on all ranks of the group, in the same
/// order, and end alike on all: when one fails, all throw CheckpointError with the reason and the rank. For
/// one thread.
class CheckpointManager {
 public:
  /// Makes the folder where it is missing. Throws CheckpointError.
  explicit CheckpointManager(std::filesystem::path folder, CheckpointManagerOptions options = {});
  /// Waits for an asynchronous save; its failure is logged.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Writes `contents` (rank 0's, what others pass is not looked at; or every rank's) as that of `step`, then
  /// removes those that no rule keeps. The latest may be replaced. A step below it throws, and nothing is
  /// written: load_latest() would go on with the other one, and what this run saves be lost. Those that this
  /// manager found damaged do not count. A metric that is not finite counts as none. The first call removes
  /// what writers that were killed left in the folder: one process, or one group of ranks, writes there at a
  /// time, while any may read. A folder that is gone after it was found or saved to is an error of every save
  /// until it is back: its checkpoints are gone with it. With async_save the failure of the save before is
  /// thrown, after this one has begun.
  void save(std::int64_t step, const Value& contents, std::optional<double> metric = std::nullopt);
  /// Removes all above `step`, for a run that goes back to it: load(step), remove_after(step).
  void remove_after(std::int64_t step);
  /// Until an asynchronous save is on disk. Throws what made it fail.
  void wait();

  /// All that are there, oldest first, whether they are whole or not. This rank's look at the folder; not
  /// collective.
  std::vector<CheckpointInfo> checkpoints() const;

  /// The newest one that is whole: checksums are compared, and one that is damaged is passed over with a
  /// warning. nullopt when the folder has none; throws when it has some and none can be loaded. One that
  /// cannot be read (CheckpointReadError: permission, disk, memory) may be whole, and is an error: an older
  /// one would hide it.
  std::optional<Checkpoint> load_latest(const LoadOptions& options = {});
  /// The one with the best metric, likewise.
  std::optional<Checkpoint> load_best(const LoadOptions& options = {});
  /// That of one step. Throws when it is not there or damaged.
  Checkpoint load(std::int64_t step, const LoadOptions& options = {});

  /// The same into what is there, as distributed_checkpoint::load(contents, folder) does: every rank reads
  /// the parts that it has of each ShardedTensor, whoever wrote them. For checkpoints of every_rank: one in a
  /// single file, which load_latest() reads, one that is whole but does not fit `contents`, and one that
  /// cannot be read are errors of all ranks.
  std::optional<CheckpointInfo> load_latest(Dict& contents);
  std::optional<CheckpointInfo> load_best(Dict& contents);
  CheckpointInfo load(std::int64_t step, Dict& contents);

  const std::filesystem::path& folder() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// A file read by rank 0 of `group` and received by the others, or read by all: PyTorch has the idiom, no
/// function. Collective; all ranks throw alike.
Value load_on_all(const ProcessGroup& group, const std::filesystem::path& file,
                  const LoadOptions& options = {}, CheckpointReading reading = CheckpointReading::broadcast);

}  // namespace lockstep
