// SPDX-License-Identifier: BSD-3-Clause
#include "base/file_lock.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>

#include <lockstep/base/log.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{20};
constexpr milliseconds kFirstMessage{2'000};
constexpr milliseconds kNextMessages{30'000};

[[noreturn]] void fail(const std::filesystem::path& file, const char* what) {
  throw std::filesystem::filesystem_error(what, file, std::error_code(errno, std::generic_category()));
}

// flock(2) has no timeout, so it polls.
void lock(int fd, const std::filesystem::path& file, const Deadline& deadline, std::string_view activity) {
  Deadline message(kFirstMessage);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail(file, "cannot be locked");
    if (deadline.expired()) {
      throw_error<TimeoutError>(
          ErrorDetails{.file = file},
          "waited {} s for another process that is {} (it holds {}); wait until it has ended, or end it, and "
          "try again",
          deadline.timeout().count() / 1000, activity, file.string());
    }
    if (message.expired()) {
      log(LogLevel::info, fmt::format("waiting for another process that is {}", activity));
      message = Deadline(kNextMessages);
    }
    std::this_thread::sleep_for(std::min(kPollInterval, deadline.remaining() + milliseconds(1)));
  }
}

}  // namespace

FileLock::FileLock(const std::filesystem::path& file, const Deadline& deadline, std::string_view activity,
                   After after)
    : file_(file), after_(after) {
  do {
    fd_ = UniqueFd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!fd_) fail(file, "cannot be opened for locking");
    lock(fd_.get(), file, deadline, activity);
  } while (!names_locked_file());  // its last holder has removed it
}

FileLock::~FileLock() {
  if (after_ == After::remove_file) ::unlink(file_.c_str());
}

bool FileLock::names_locked_file() const {
  struct stat locked {};
  struct stat named {};
  return ::fstat(fd_.get(), &locked) == 0 && ::stat(file_.c_str(), &named) == 0 &&
         locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

}  // namespace lockstep
