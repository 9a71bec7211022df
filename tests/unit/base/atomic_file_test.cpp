// SPDX-License-Identifier: BSD-3-Clause
#include "base/atomic_file.h"

#include <cerrno>
#include <fstream>
#include <span>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

int error_of_folders = 0;

}  // namespace
}  // namespace lockstep::testing

// In the place of the C library's, for folders that cannot be synced.
extern "C" int fsync(int fd) {
  struct stat status {};
  if (lockstep::testing::error_of_folders != 0 && ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = lockstep::testing::error_of_folders;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, std::string_view text) {
  AtomicFile target(file, {.sync = false});
  target.write(std::as_bytes(std::span(text)));
  target.commit();
}

fs::perms mode_of(const fs::path& file) { return fs::status(file).permissions(); }

TEST(AtomicFile, KeepsThePermissionsOfTheReplacedFile) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  for (const auto mode : {fs::perms(0640), fs::perms(0600), fs::perms(0664)}) {
    fs::permissions(file, mode);
    write(file, "two");
    EXPECT_EQ(mode_of(file), mode);
  }
}

TEST(AtomicFile, RemovesAReadOnlyLeftover) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  // Root may write any file, but not the target of a dangling link.
  fs::create_symlink(temp.path() / "none" / "none", temp.path() / "a.part");
  write(file, "three");
  EXPECT_EQ(fs::file_size(file), 5U);
  EXPECT_FALSE(fs::is_symlink(file));
  std::ofstream(temp.path() / "a.part") << "left";
  fs::permissions(temp.path() / "a.part", fs::perms(0444));
  fs::permissions(file, fs::perms(0444));
  write(file, "four");
  EXPECT_EQ(fs::file_size(file), 4U);
  EXPECT_EQ(mode_of(file), fs::perms(0444));
}

TEST(AtomicFile, ReportsWhenTheNewFileIsNotSynced) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    AtomicFile target(file);
    target.write(std::as_bytes(std::span(std::string_view("three"))));
    error_of_folders = error;
    EXPECT_THROW(target.commit(), NotOnDisk);
    error_of_folders = 0;
    EXPECT_EQ(fs::file_size(file), 5U);
  }
  error_of_folders = EINVAL;  // as on a file system that cannot sync folders
  AtomicFile target(file);
  EXPECT_NO_THROW(target.commit());
  error_of_folders = 0;
}

TEST(AtomicFile, IsCompleteOrAbsent) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  {
    AtomicFile target(file);
    target.write(std::as_bytes(std::span(std::string_view("half"))));
    EXPECT_EQ(fs::file_size(file), 3U);
  }
  EXPECT_EQ(fs::file_size(file), 3U);
  EXPECT_FALSE(fs::exists(temp.path() / "a.part"));
}

TEST(MakeFolders, CreatesMissingFolders) {
  const TempFolder temp;
  make_folders(temp.path() / "a" / "b" / "c");
  EXPECT_TRUE(fs::is_directory(temp.path() / "a" / "b" / "c"));
  make_folders(temp.path() / "d" / "e" / "", false);
  EXPECT_TRUE(fs::is_directory(temp.path() / "d" / "e"));
  make_folders(temp.path() / "a");
  make_folders("");
  fs::create_directory_symlink(temp.path() / "a", temp.path() / "link");
  make_folders(temp.path() / "link" / "f");
  EXPECT_TRUE(fs::is_directory(temp.path() / "a" / "f"));
  std::ofstream(temp.path() / "file") << "x";
  EXPECT_THROW(make_folders(temp.path() / "file" / "g"), std::system_error);
  EXPECT_THROW(make_folders(temp.path() / "file"), std::system_error);
}

}  // namespace
}  // namespace lockstep::testing
