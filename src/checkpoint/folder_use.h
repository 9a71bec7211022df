// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include "base/unique_fd.h"

namespace lockstep::checkpointing {

// A save to a folder that other saves may use at the same time. As long as one of them is in progress, no
// other save removes files: they may belong to a checkpoint that is not complete yet. Uses flock(2) on the
// folder; on a file system that has none for folders, a save counts as the only one.
class FolderUse {
 public:
  explicit FolderUse(const std::filesystem::path& folder);

  // Ends the use. Returns whether no other save was in progress, and keeps new ones waiting until this object
  // is destroyed.
  bool be_the_last();

 private:
  UniqueFd folder_;
};

}  // namespace lockstep::checkpointing
