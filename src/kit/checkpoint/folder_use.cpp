// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/folder_use.h"

#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>

#include "base/deadline.h"
#include "base/unfinished_file.h"

namespace lockstep::checkpointing {
namespace {

namespace fs = std::filesystem;

// Removing files takes less, unless the process is stopped.
constexpr std::chrono::milliseconds kLongestRemoval{10'000};

Others lock(int folder, int how, std::chrono::milliseconds longest_wait) {
  const Deadline deadline(longest_wait);
  while (::flock(folder, how | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Others::unknown;
    if (deadline.expired()) return Others::some;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Others::none;
}

}  // namespace

FolderUse::FolderUse(const fs::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_) lock(folder_.get(), LOCK_SH, kLongestRemoval);
}

FolderUse::~FolderUse() {
  if (folder_) ::flock(folder_.get(), LOCK_UN);
}

bool FolderUse::is_at(const fs::path& folder) const {
  struct stat used {};
  struct stat named {};
  if (::stat(folder.c_str(), &named) != 0) return false;
  if (!folder_ || ::fstat(folder_.get(), &used) != 0) return true;
  return used.st_dev == named.st_dev && used.st_ino == named.st_ino;
}

Others FolderUse::be_the_last(std::chrono::milliseconds longest_wait) {
  return folder_ ? lock(folder_.get(), LOCK_EX, longest_wait) : Others::unknown;
}

bool FolderUse::is_of_one_host() const { return folder_ && lockstep::is_of_one_host(folder_.get()); }

void remove_if_unused(const fs::path& left) {
  constexpr int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const UniqueFd fd(::open(left.c_str(), flags));
  const auto others = fd ? lock(fd.get(), LOCK_EX, {}) : Others::unknown;
  if (others == Others::some) return;
  const bool is_dead = others == Others::none && is_of_one_host(fd.get());
  std::error_code code;
  if (is_dead || is_a_day_old(left)) fs::remove_all(left, code);
}

bool is_a_day_old(const fs::path& file) {
  constexpr std::time_t day = 24 * 60 * 60;
  struct stat status {};
  return ::lstat(file.c_str(), &status) == 0 && status.st_mtime < std::time(nullptr) - day;
}

}  // namespace lockstep::checkpointing
