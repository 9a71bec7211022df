// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string_view>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::data {

// An exclusive lock on a file, among threads and processes, until the object or the process ends. The file
// stays.
class FileLock {
 public:
  // Creates `file` if needed. While another holder keeps it waiting it logs "waiting for another process that
  // is <activity>". Throws DataError when the file cannot be opened and TimeoutError at the deadline.
  FileLock(const std::filesystem::path& file, const Deadline& deadline, std::string_view activity);

 private:
  UniqueFd fd_;
};

}  // namespace lockstep::data
