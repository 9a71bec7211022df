// SPDX-License-Identifier: BSD-3-Clause
#include "observe/private_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"

namespace lockstep::observe {
namespace {

// Removes the unfinished file.
[[noreturn]] void give_up(const std::string& unfinished) {
  const int reason = errno;
  ::unlink(unfinished.c_str());
  throw std::system_error(reason, std::generic_category());
}

}  // namespace

std::string reason_not_to_replace(const std::filesystem::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  if (S_ISDIR(status.st_mode)) return "it is a folder; name a file";
  const char* const what = S_ISLNK(status.st_mode) ? "a symbolic link" : "a device, a pipe or a socket";
  return fmt::format("it is {}, which is not replaced; name a regular file, or one that does not exist",
                     what);
}

void write_private_file(const std::filesystem::path& file, const std::string& bytes) {
  const FileSizeErrors as_errors;
  const auto refusal = reason_not_to_replace(file);
  if (!refusal.empty()) throw_error<Error>("{}: {}", file.string(), refusal);
  const auto unfinished = file.string() + "." + random_hex(8) + ".tmp";
  const UniqueFd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fd) throw std::system_error(errno, std::generic_category());
  for (std::size_t written = 0; written < bytes.size();) {
    const auto count = ::write(fd.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) give_up(unfinished);
    written += static_cast<std::size_t>(count);
  }
  if (::rename(unfinished.c_str(), file.c_str()) != 0) give_up(unfinished);
}

}  // namespace lockstep::observe
