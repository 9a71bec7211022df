// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

#include "checkpoint/distributed_metadata.h"
#include "checkpoint/folder_use.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/share.h"
#include "checkpoint/tensor_copies.h"

namespace lockstep::distributed_checkpoint {

// What begins a save.
struct SaveTicket {
  std::string token;                              // unique
  std::optional<checkpointing::FolderUse> use{};  // on rank 0
};

// Collective. Creates the folder.
SaveTicket begin_save(const std::filesystem::path& folder, const checkpointing::Group& group, bool sync);

// A distributed save in steps. The constructor agrees on what every rank writes; afterwards ranks only need
// to know whether the others succeeded. File names contain `token`, so that a late writer of another save
// cannot interfere.
class DistributedSave {
 public:
  // Collective; all ranks throw CheckpointError. With `copies`, tensors may change afterwards, otherwise only
  // after write().
  DistributedSave(const Dict& contents, const checkpointing::Group& group, SaveTicket ticket,
                  checkpointing::TensorCopies* copies = nullptr);

  // Writes this rank's file atomically. Throws CheckpointError.
  void write(const std::filesystem::path& folder, bool sync) const;
  // Leaves a mark for rank 0's is_complete(): this rank cannot write its file.
  void give_up(const std::filesystem::path& folder) const;
  // Removes the mark of give_up(), after all ranks know of the error.
  void forget_failure(const std::filesystem::path& folder) const;
  // On rank 0: whether the files of all ranks have their planned sizes. Throws CheckpointError if a rank gave
  // up.
  bool is_complete(const std::filesystem::path& folder) const;
  // On rank 0, after all ranks have written: writes the metadata, which replaces the old checkpoint, then
  // removes the old one's files, and those that belong to no checkpoint if no save in progress can have
  // written them.
  void commit(const std::filesystem::path& folder, bool sync);

 private:
  struct Item {
    at::Tensor tensor{};     // or undefined, for an object:
    std::string bytes{};     // what is written
    std::uint64_t size = 0;  // of what is written
  };

  void take_items(const SavePlan& plan, const std::vector<Leaf>& leaves, std::size_t rank,
                  checkpointing::TensorCopies* copies);
  void place_all(SavePlan plan, const std::vector<std::string>& sizes_of_ranks, const std::string& token);

  std::optional<checkpointing::FolderUse> use_;  // on rank 0, until commit()
  std::string file_;
  std::vector<Item> items_;
  Metadata metadata_;                           // on rank 0
  std::map<std::string, std::uint64_t> files_;  // on rank 0: with their sizes
};

}  // namespace lockstep::distributed_checkpoint
