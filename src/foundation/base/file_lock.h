// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string_view>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep {

// An exclusive lock on a file, among threads and processes, until the object or the process ends. A file
// system that several hosts mount may lock among the processes of each host only.
class FileLock {
 public:
  enum class After { keep_file, remove_file };

  // Creates `file` if needed. While another holder keeps it waiting it logs "waiting for another process that
  // is <activity>". Throws std::filesystem::filesystem_error when the file cannot be opened or locked, and
  // TimeoutError at the deadline.
  FileLock(const std::filesystem::path& file, const Deadline& deadline, std::string_view activity,
           After after = After::keep_file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  bool names_locked_file() const;

  std::filesystem::path file_;
  After after_;
  UniqueFd fd_;
};

}  // namespace lockstep
