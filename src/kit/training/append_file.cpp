// SPDX-License-Identifier: BSD-3-Clause
#include "training/append_file.h"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/limits.h"
#include "base/throw_error.h"

namespace lockstep::training {

AppendFile::AppendFile(std::filesystem::path file, std::uint64_t size) : file_(std::move(file)), size_(size) {
  try {
    make_folders(file_.parent_path(), false);
  } catch (const std::system_error& error) {
    throw_error<Error>("{} cannot be written: {}", file_.string(), error.what());
  }
  fd_.reset(::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd_ || ::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) fail(errno);
}

void AppendFile::append(std::string_view record) {
  const FileSizeErrors as_errors;
  for (auto rest = record; !rest.empty();) {
    const auto count = ::write(fd_.get(), rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int code = errno;
      // A part of a record would hide the ones that follow it from readers.
      [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), static_cast<off_t>(size_));
      fail(code);
    }
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
  size_ += record.size();
}

void AppendFile::sync() {
  if (::fdatasync(fd_.get()) != 0) fail(errno);
}

void AppendFile::fail(int code) const {
  throw_error<Error>("{} cannot be written: {}", file_.string(), errno_text(code));
}

}  // namespace lockstep::training
