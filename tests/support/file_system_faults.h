// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cerrno>
#include <cstdarg>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace lockstep::testing {

/// What the file system lacks for this process. Include this header in one file of a program: it defines
/// functions in the place of the C library's.
struct FileSystemFaults {
  bool no_unnamed_files = false;  ///< O_TMPFILE is not supported
  bool no_links = false;          ///< a file without a name cannot get one
  bool no_locks = false;          ///< flock(2) fails, as on NFS without a lock service
  bool is_shared = false;         ///< fstatfs(2) says NFS
  int error_of_folders = 0;       ///< of fsync(2) on a folder
};
inline FileSystemFaults file_system_faults;

/// Sets the faults until the end of the scope.
class ScopedFaults {
 public:
  explicit ScopedFaults(const FileSystemFaults& faults) { file_system_faults = faults; }
  ~ScopedFaults() { file_system_faults = {}; }
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;
};

inline int fail_with(int error) {
  errno = error;
  return -1;
}

}  // namespace lockstep::testing

extern "C" int open(const char* path, int flags, ...) {
  using lockstep::testing::file_system_faults;
  std::va_list arguments;
  va_start(arguments, flags);
  const auto mode = va_arg(arguments, mode_t);  // garbage without O_CREAT, and then unused
  va_end(arguments);
  if ((flags & O_TMPFILE) == O_TMPFILE && file_system_faults.no_unnamed_files)
    return lockstep::testing::fail_with(EOPNOTSUPP);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" int linkat(int from, const char* old_name, int to, const char* new_name, int flags) noexcept {
  if (lockstep::testing::file_system_faults.no_links) return lockstep::testing::fail_with(EPERM);
  return static_cast<int>(::syscall(SYS_linkat, from, old_name, to, new_name, flags));
}

// A function of this name would hide the constructor of struct flock.
extern "C" int faulty_flock(int fd, int operation) __asm__("flock");
extern "C" int faulty_flock(int fd, int operation) {
  if (lockstep::testing::file_system_faults.no_locks) return lockstep::testing::fail_with(ENOLCK);
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

extern "C" int fstatfs(int fd, struct statfs* status) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_fstatfs, fd, status));
  if (result == 0 && lockstep::testing::file_system_faults.is_shared) status->f_type = 0x6969;
  return result;
}

extern "C" int fsync(int fd) {
  struct stat status {};
  const auto error = lockstep::testing::file_system_faults.error_of_folders;
  if (error != 0 && ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode))
    return lockstep::testing::fail_with(error);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
