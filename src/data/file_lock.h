// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string_view>

#include <lockstep/base/deadline.h>
#include <lockstep/base/unique_fd.h>

namespace lockstep::data {

/// Holds a lock file exclusively, among threads and processes, until it goes out of scope or its process ends
/// in whatever way. The file itself stays.
class FileLock {
 public:
  /// Creates `file` when it is not there. While another holder keeps it waiting it says so in the log:
  /// "waiting for another process that is <activity>". Throws DataError when the file cannot be opened and
  /// TimeoutError at the deadline.
  FileLock(const std::filesystem::path& file, const Deadline& deadline, std::string_view activity);

 private:
  UniqueFd fd_;
};

}  // namespace lockstep::data
