// SPDX-License-Identifier: BSD-3-Clause
#include "base/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"

namespace lockstep {
namespace {

// So that the disk does not stand still until fsync(), which would then take long.
constexpr std::uint64_t kWindow = std::uint64_t{64} << 20;

[[noreturn]] void fail(const std::filesystem::path& file) {
  throw std::system_error(errno, std::generic_category(), file.string());
}

std::optional<mode_t> permissions_of(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  constexpr mode_t permissions = 0777;
  return status.st_mode & permissions;
}

// Whether a new file must not take the place of `file`. /dev/stdout is a link to /proc.
bool is_special(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return false;
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return true;
  std::error_code not_a_link;
  const auto target = std::filesystem::read_symlink(file, not_a_link);
  return file.string().starts_with("/proc/") || target.string().starts_with("/proc/");
}

// Keeps the permissions of the old file, if the file system has permissions.
void keep_mode(int fd, const std::filesystem::path& old_file) {
  const auto permissions = permissions_of(old_file);
  if (!permissions || ::fchmod(fd, *permissions) == 0) return;
  if (!has_no_modes(errno)) fail(old_file);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path file, const AtomicFileOptions& options)
    : file_(std::move(file)), options_(options), others_(file_) {
  if (is_special(file_)) {
    special_.reset(::open(file_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
    if (!special_) fail();
    return;
  }
  // Not readable by more users than the old file.
  unfinished_.emplace(file_.parent_path(), permissions_of(file_).value_or(0666));
  remove_leftovers(file_.parent_path(), fd());
}

void AtomicFile::fail() const { lockstep::fail(file_); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  const FileSizeErrors as_errors;
  while (!bytes.empty()) {
    const auto count = ::write(fd(), bytes.data(), std::min(bytes.size(), kWindow - size_ % kWindow));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    size_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    if (unfinished_ && options_.sync && count > 0 && size_ % kWindow == 0) start_write_back();
  }
}

// The disk is at most two windows behind. An error that appears here does not appear in fsync() again.
void AtomicFile::start_write_back() const {
  const auto is_written = [this](std::uint64_t begin, unsigned flags) {
    const auto offset = static_cast<off64_t>(begin);
    return ::sync_file_range(fd(), offset, static_cast<off64_t>(kWindow), flags) == 0 ||
           (errno != EIO && errno != ENOSPC && errno != EDQUOT);
  };
  constexpr unsigned kWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (!is_written(size_ - kWindow, SYNC_FILE_RANGE_WRITE)) fail();
  if (size_ > kWindow && !is_written(size_ - 2 * kWindow, kWait)) fail();
}

// NFS reports errors of earlier writes when a descriptor is closed. The lock stays with the other descriptor.
void AtomicFile::flush() const {
  if (options_.sync && ::fsync(fd()) != 0) fail();
  const int copy = ::fcntl(fd(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0 || ::close(copy) != 0) fail();
}

void AtomicFile::commit() {
  if (!unfinished_) return;
  unfinished_->give_name();
  keep_mode(fd(), file_);
  flush();
  if (options_.for_one_rank) others_.warn_if_any();
  unfinished_->rename_to(file_);
  others_.saved();
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
