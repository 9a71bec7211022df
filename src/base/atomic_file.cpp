// SPDX-License-Identifier: BSD-3-Clause
#include "base/atomic_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace lockstep {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file) {
  throw std::system_error(errno, std::generic_category(), file.string());
}

std::optional<mode_t> permissions_of(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  constexpr mode_t permissions = 0777;
  return status.st_mode & permissions;
}

// Removes an older one first: a killed writer may have left a read-only file.
UniqueFd make_file(const std::filesystem::path& file, mode_t permissions) {
  if (::unlink(file.c_str()) != 0 && errno != ENOENT) fail(file);
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, permissions));
  if (!fd) fail(file);
  return fd;
}

// Keeps the permissions of the old file, if the file system has permissions.
void keep_mode(int fd, const std::filesystem::path& old_file) {
  const auto permissions = permissions_of(old_file);
  if (!permissions || ::fchmod(fd, *permissions) == 0) return;
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) fail(old_file);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path file, AtomicFileOptions options)
    : file_(std::move(file)), options_(std::move(options)), part_(file_) {
  part_ += options_.suffix;
  // Not readable by more users than the old file.
  fd_ = make_file(part_, permissions_of(file_).value_or(0666));
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(part_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = ::write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(part_);
    size_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  keep_mode(fd_.get(), file_);
  if (options_.sync && ::fsync(fd_.get()) != 0) fail(part_);
  if (::close(fd_.release()) != 0) fail(part_);
  if (std::rename(part_.c_str(), file_.c_str()) != 0) fail(file_);
  committed_ = true;
  if (!options_.sync) return;
  try {
    sync_folder(file_.parent_path());
  } catch (const std::system_error& error) {
    throw NotOnDisk(error.code(), file_.string());
  }
}

void make_folders(const std::filesystem::path& folder, bool sync) {
  std::error_code code;
  if (folder.empty() || std::filesystem::is_directory(folder, code)) return;
  // "a/" and "a" are one folder.
  const auto above = folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
  make_folders(above, sync);
  if (std::filesystem::create_directory(folder, code) && sync) sync_folder(above);
  if (code) throw std::system_error(code, folder.string());
}

void sync_folder(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return;
  if (::fsync(fd.get()) == 0) return;
  if (errno == EIO || errno == ENOSPC || errno == EDQUOT) fail(folder);
}

}  // namespace lockstep
