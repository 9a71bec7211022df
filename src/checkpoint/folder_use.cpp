// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/folder_use.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <sys/file.h>
#include <thread>

#include "base/deadline.h"

namespace lockstep::checkpointing {
namespace {

// Removing files takes less, unless the process is stopped.
constexpr std::chrono::milliseconds kLongestRemoval{10'000};

bool is_locked_by_another(int folder, int how) {
  return ::flock(folder, how | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

FolderUse::FolderUse(const std::filesystem::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const Deadline deadline(kLongestRemoval);
  while (folder_ && is_locked_by_another(folder_.get(), LOCK_SH) && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool FolderUse::be_the_last() { return !folder_ || !is_locked_by_another(folder_.get(), LOCK_EX); }

}  // namespace lockstep::checkpointing
