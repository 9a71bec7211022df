// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <sys/types.h>

#include "base/unique_fd.h"

namespace lockstep {

// A file that is being written and does not have its final name yet. Any number of processes and threads may
// have one for the same name or in the same folder. See note [Unfinished files]. Every error is a
// std::system_error with errno's code. Not thread-safe.
class UnfinishedFile {
 public:
  // `mode`: as for open(2).
  UnfinishedFile(std::filesystem::path folder, mode_t mode);
  // Removes the file unless it was renamed.
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  // Open for writing. give_name() may replace it.
  int fd() const { return fd_.get(); }
  // Gives the file a unique name in its folder, if it has none. Call it before the last fsync(2): some
  // file systems do not write a file without a name to the disk.
  void give_name();
  // Gives the file its final name, which replaces a file that had the name. REQUIRES give_name().
  void rename_to(const std::filesystem::path& file);

 private:
  bool open_unnamed(mode_t mode);
  void open_named(mode_t mode);
  void copy_to_named();

  std::filesystem::path folder_;
  UniqueFd fd_;
  std::filesystem::path name_;  // empty for a file without a name
};

// Whether fchmod(2) failed because the file system keeps no permissions of this user's.
bool has_no_modes(int error);

// Whether one host at most has the file system of an open file mounted, so that flock(2) reaches all its
// users.
bool is_of_one_host(int fd);

// Removes from `folder` the UnfinishedFiles of writers that are dead. Leaves the files of live writers and of
// other programs, and what it cannot remove. `fd`: a file that was just created in the folder; its time is
// that of the file system. A process lists a folder of many files at some of its saves only.
void remove_leftovers(const std::filesystem::path& folder, int fd);

}  // namespace lockstep
