// SPDX-License-Identifier: BSD-3-Clause
#include "data/atomic_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/unique_fd.h>

namespace lockstep::data {
namespace {

DataError failure(const std::filesystem::path& file) {
  return DataError(fmt::format("{}: cannot be written: {}", file.string(), errno_text(errno)));
}

void write_all(int fd, std::span<const std::uint8_t> left, const std::filesystem::path& file) {
  while (!left.empty()) {
    const auto count = ::write(fd, left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw failure(file);
    left = left.subspan(static_cast<std::size_t>(count));
  }
  if (::fsync(fd) != 0) throw failure(file);
}

// A temporary name that goes away unless it became the file.
struct PartFile {
  std::filesystem::path path;
  ~PartFile() { ::unlink(path.c_str()); }
};

}  // namespace

void write_file_atomically(const std::filesystem::path& file, std::span<const std::uint8_t> contents) {
  const PartFile part{std::filesystem::path(file) += ".part"};
  const UniqueFd fd(::open(part.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) throw failure(part.path);
  write_all(fd.get(), contents, part.path);
  if (std::rename(part.path.c_str(), file.c_str()) != 0) throw failure(file);
  // Makes the rename itself last; a file system that cannot sync a folder has nothing more to offer.
  const UniqueFd folder(::open(file.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) ::fsync(folder.get());
}

}  // namespace lockstep::data
