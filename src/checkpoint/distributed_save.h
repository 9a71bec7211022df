// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

#include "checkpoint/distributed_table.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/share.h"
#include "checkpoint/tensor_copies.h"

namespace lockstep::distributed_checkpoint {

/// A save in steps: what every rank writes is settled first, so that the rest needs no word among ranks but
/// whether it succeeded. Names of files have `token` in them: a writer of another save, though it comes late
/// and from a run before, puts nothing into this one.
class DistributedSave {
 public:
  /// Collective: all ranks throw CheckpointError alike. With `copies` the tensors may change afterwards;
  /// otherwise not before write().
  DistributedSave(const Dict& contents, const checkpointing::Group& group, const std::string& token,
                  checkpointing::TensorCopies* copies = nullptr);

  /// This rank's file, whole or not at all. Throws CheckpointError.
  void write(const std::filesystem::path& folder, bool sync) const;
  /// Tells rank 0's is_complete() that this rank's file will not come.
  void give_up(const std::filesystem::path& folder) const;
  /// Once all ranks know: takes the mark of give_up() away.
  void forget_failure(const std::filesystem::path& folder) const;
  /// On rank 0: whether the files of all ranks are there, as long as planned. Throws CheckpointError when a
  /// rank gave up.
  bool is_complete(const std::filesystem::path& folder) const;
  /// On rank 0, once all have written: the table, with which the new checkpoint takes the place of the old;
  /// then files that belong to none are removed.
  void commit(const std::filesystem::path& folder, bool sync) const;

 private:
  struct Item {
    at::Tensor tensor{};     // or undefined, for an object:
    std::string bytes{};     // what is written
    std::uint64_t size = 0;  // of what is written
  };

  void take_items(const SavePlan& plan, const std::vector<Leaf>& leaves, std::size_t rank,
                  checkpointing::TensorCopies* copies);
  void place_all(SavePlan plan, const std::vector<std::string>& sizes_of_ranks, const std::string& token);

  std::string file_;
  std::vector<Item> items_;
  Table table_;                                 // on rank 0
  std::map<std::string, std::uint64_t> files_;  // on rank 0: with their sizes
};

/// Collective: makes the folder, and gives the token of a save in it, which no other has.
std::string begin_save(const std::filesystem::path& folder, const checkpointing::Group& group, bool sync);

}  // namespace lockstep::distributed_checkpoint
