// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <filesystem>

#include "base/unique_fd.h"

namespace lockstep::checkpointing {

// Whether a folder has another user.
enum class Others {
  none,
  some,
  unknown,  // the file system has no locks for folders
};

// The use of a folder that others may use at the same time, by flock(2) on the folder. A file system that
// several hosts mount may know the users of this host only.
class FolderUse {
 public:
  explicit FolderUse(const std::filesystem::path& folder);
  // A child process may have inherited the lock.
  ~FolderUse();
  FolderUse(FolderUse&& other) noexcept = default;
  FolderUse& operator=(FolderUse&&) = delete;

  // Whether `folder` still names what is used, and has not been removed or replaced.
  bool is_at(const std::filesystem::path& folder) const;
  // Ends the use and waits until nobody else uses the folder. If so, new users wait until this object is
  // destroyed.
  Others be_the_last(std::chrono::milliseconds longest_wait = {});
  // Whether no other host can have the folder mounted.
  bool is_of_one_host() const;

 private:
  UniqueFd folder_;
};

// Removes what a dead writer left: a folder or file that nobody uses. Where locks cannot tell, and for links,
// a day must have passed since the last write.
void remove_if_unused(const std::filesystem::path& left);

// Whether nobody has written to a file or folder for a day.
bool is_a_day_old(const std::filesystem::path& file);

}  // namespace lockstep::checkpointing
