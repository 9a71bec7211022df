// SPDX-License-Identifier: BSD-3-Clause
#include "base/unfinished_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/mutex.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/text.h"

namespace lockstep {

// Note [Unfinished files]
//
// Where the file system can, the file has no name while it is written (O_TMPFILE): a killed writer leaves
// nothing. Its name then exists from just before the last fsync(2) to the rename. Elsewhere (NFS, FUSE, old
// kernels, no /proc) it has a name from the start: ".lockstep-<boot>-<random>.part". <boot> is the first part
// of the kernel's boot id, and <random> is never used again, so nobody mistakes one file for another. The
// name does not contain the final one, which may be as long as the file system allows.
//
// A writer holds flock(2) on its file as long as the file has such a name. The kernel releases the lock when
// the process dies, so a file whose lock can be taken has no writer. Two cases need more care:
//   - A file that is created with a name is not locked for a moment, in which another process may take it for
//     a leftover. A writer that cannot take the lock, or whose file is removed afterwards, creates another.
//   - A lock may be unknown to other hosts (or not exist) on a shared file system. Files of another boot of
//     the kernel there, and all files on FUSE, are leftovers only when nobody has written to them for a day.
//     On a file system that one host alone can mount, a writer of another boot is dead.
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".lockstep-";
constexpr std::string_view kEnding = ".part";
constexpr std::size_t kBootDigits = 8;
constexpr int kRandomWords = 2;
constexpr std::size_t kRandomDigits = 8 * kRandomWords;
constexpr const char* kNoBoot = "00000000";  // where /proc is missing
constexpr std::int64_t kDay = 24 * 60 * 60;

[[noreturn]] void fail_at(const fs::path& file) {
  throw std::system_error(errno, std::generic_category(), file.string());
}

const std::string& own_boot() {
  static const auto boot = [] {
    const auto id = first_line("/proc/sys/kernel/random/boot_id");
    return id.size() > kBootDigits ? id.substr(0, kBootDigits) : std::string(kNoBoot);
  }();
  return boot;
}

std::string unique_name() {
  return fmt::format("{}{}-{}{}", kPrefix, own_boot(), random_hex(kRandomWords), kEnding);
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The boot in a name of unique_name(); empty for another name.
std::string_view boot_in(std::string_view name) {
  constexpr auto size = kPrefix.size() + kBootDigits + 1 + kRandomDigits + kEnding.size();
  if (name.size() != size || !name.starts_with(kPrefix) || !name.ends_with(kEnding)) return {};
  const auto boot = name.substr(kPrefix.size(), kBootDigits);
  const auto rest = name.substr(kPrefix.size() + kBootDigits);
  const bool is_one = is_hex(boot) && rest.front() == '-' && is_hex(rest.substr(1, kRandomDigits));
  return is_one ? boot : std::string_view();
}

fs::path link_of(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// Without an error if the file system has no locks.
bool lock_or_skip(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

std::uint32_t type_of(int fd) {
  struct statfs status {};
  return ::fstatfs(fd, &status) == 0 ? static_cast<std::uint32_t>(status.f_type) : 0;
}

// Each mount of it may have locks of its own, even on one host.
bool is_of_fuse(int fd) { return type_of(fd) == 0x65735546; }

// NFS needs a file that is open for writing to lock it, but a leftover may be read-only.
UniqueFd open_leftover(const fs::path& file) {
  constexpr int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  UniqueFd fd(::open(file.c_str(), O_RDWR | flags));
  if (!fd) fd.reset(::open(file.c_str(), O_RDONLY | flags));
  return fd;
}

// `now`: in seconds, by the clock of the file system.
void remove_if_dead(const fs::path& file, std::string_view boot, std::int64_t now) {
  const auto fd = open_leftover(file);
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  const bool locked = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno == EWOULDBLOCK) return;
  const bool is_own = boot == own_boot() && boot != kNoBoot && !is_of_fuse(fd.get());
  const bool decides = locked && (is_own || is_of_one_host(fd.get()));
  if (decides || status.st_mtime < now - kDay) ::unlink(file.c_str());
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

struct Listing {
  std::vector<std::string> unfinished;
  std::size_t entries = 0;
};

Listing list_folder(const fs::path& folder) {
  Listing found;
  const std::unique_ptr<DIR, CloseFolder> stream(::opendir(folder.c_str()));
  while (stream) {
    const auto* const entry = ::readdir(stream.get());  // NOLINT(concurrency-mt-unsafe): a stream of its own
    if (entry == nullptr) break;
    ++found.entries;
    if (!boot_in(entry->d_name).empty()) found.unfinished.emplace_back(entry->d_name);
  }
  return found;
}

// Whether a folder is listed at this save; a large one is listed once in many.
class ListingPlan {
 public:
  bool is_due(const std::string& folder) {
    const MutexLock lock(mutex_);
    const auto found = saves_to_skip_.find(folder);
    if (found == saves_to_skip_.end()) return true;
    if (--found->second == 0) saves_to_skip_.erase(found);
    return false;
  }
  void listed(const std::string& folder, std::size_t entries) {
    constexpr std::size_t many = 1000;
    if (entries < many) return;
    const MutexLock lock(mutex_);
    saves_to_skip_[folder] = entries / many;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::size_t> saves_to_skip_ LOCKSTEP_GUARDED_BY(mutex_);
};

ListingPlan& listing_plan() {
  static ListingPlan plan;
  return plan;
}

// Whether the file system, not the file or the disk, is the reason.
bool cannot_link(int error) {
  return error == ENOENT || error == EXDEV || error == EPERM || error == EOPNOTSUPP || error == ENOSYS ||
         error == EACCES;
}

fs::path or_here(fs::path folder) { return folder.empty() ? fs::path(".") : folder; }

}  // namespace

UnfinishedFile::UnfinishedFile(fs::path folder, mode_t mode) : folder_(or_here(std::move(folder))) {
  if (!open_unnamed(mode)) open_named(mode);
}

UnfinishedFile::~UnfinishedFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
}

// An error is left to open_named(): each kernel and file system has its own for O_TMPFILE.
bool UnfinishedFile::open_unnamed(mode_t mode) {
  fd_.reset(::open(folder_.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, mode));
  return fd_ && ::access(link_of(fd_.get()).c_str(), F_OK) == 0 && lock_or_skip(fd_.get());
}

void UnfinishedFile::open_named(mode_t mode) {
  while (true) {
    const auto name = folder_ / unique_name();
    UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (!fd && errno == EEXIST) continue;
    if (!fd) fail_at(name);
    if (lock_or_skip(fd.get()) && ::access(name.c_str(), F_OK) == 0) {
      fd_ = std::move(fd);
      name_ = name;
      return;
    }
    ::unlink(name.c_str());
  }
}

void UnfinishedFile::give_name() {
  while (name_.empty()) {
    const auto name = folder_ / unique_name();
    if (::linkat(AT_FDCWD, link_of(fd()).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      name_ = name;
    } else if (cannot_link(errno)) {
      copy_to_named();
    } else if (errno != EEXIST) {
      fail_at(name);
    }
  }
}

// Where links are not possible after all.
void UnfinishedFile::copy_to_named() {
  const auto source = std::move(fd_);
  open_named(S_IRUSR | S_IWUSR);
  struct stat status {};
  if (::fstat(source.get(), &status) != 0) fail_at(name_);
  if (::fchmod(fd(), status.st_mode & 07777U) != 0 && !has_no_modes(errno)) fail_at(name_);
  const FileSizeErrors as_errors;
  std::vector<char> buffer(std::size_t{1} << 20U);
  for (off_t done = 0; done < status.st_size;) {
    const auto count = ::pread(source.get(), buffer.data(), buffer.size(), done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_at(name_);
    for (ssize_t written = 0; written < count;) {
      const auto more = ::write(fd(), buffer.data() + written, static_cast<std::size_t>(count - written));
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) fail_at(name_);
      written += more;
    }
    done += count;
  }
}

void UnfinishedFile::rename_to(const fs::path& file) {
  if (std::rename(name_.c_str(), file.c_str()) != 0) fail_at(file);
  name_.clear();
}

bool is_of_one_host(int fd) {
  constexpr std::array<std::uint32_t, 11> local{
      0xEF53,      // ext2, ext3, ext4
      0x58465342,  // XFS
      0x9123683E,  // btrfs
      0x01021994,  // tmpfs
      0x858458F6,  // ramfs
      0x794C7630,  // overlayfs
      0xF2F52010,  // F2FS
      0x2FC12FC1,  // ZFS
      0xCA451A4E,  // bcachefs
      0x3153464A,  // JFS
      0x4D44,      // FAT
  };
  return std::ranges::find(local, type_of(fd)) != local.end();
}

bool has_no_modes(int error) { return error == EPERM || error == EOPNOTSUPP || error == ENOSYS; }

void remove_leftovers(const fs::path& folder, int fd) {
  struct stat status {};
  if (!listing_plan().is_due(folder.string()) || ::fstat(fd, &status) != 0) return;
  const auto found = list_folder(or_here(folder));
  listing_plan().listed(folder.string(), found.entries);
  for (const auto& name : found.unfinished) remove_if_dead(folder / name, boot_in(name), status.st_ctime);
}

}  // namespace lockstep
