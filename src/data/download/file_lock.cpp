// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/file_lock.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <sys/file.h>
#include <thread>

#include <lockstep/base/log.h>

#include "base/throw_error.h"

namespace lockstep::data {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{50};
constexpr milliseconds kFirstMessage{2'000};
constexpr milliseconds kNextMessages{30'000};

}  // namespace

FileLock::FileLock(const std::filesystem::path& file, const Deadline& deadline, std::string_view activity)
    : fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (!fd_) throw_error<DataError>("{}: cannot be opened for locking: {}", file.string(), errno_text(errno));
  // flock(2) has no timeout, so poll.
  Deadline message(kFirstMessage);
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      throw_error<DataError>("{}: cannot be locked: {}", file.string(), errno_text(errno));
    }
    if (deadline.expired()) {
      throw_error<TimeoutError>(
          "waited {} s for another process that is {} (it holds {}); check that process, or raise the "
          "timeout",
          deadline.timeout().count() / 1000, activity, file.string());
    }
    if (message.expired()) {
      log(LogLevel::info, fmt::format("waiting for another process that is {}", activity));
      message = Deadline(kNextMessages);
    }
    std::this_thread::sleep_for(std::min(kPollInterval, deadline.remaining() + milliseconds(1)));
  }
}

}  // namespace lockstep::data
