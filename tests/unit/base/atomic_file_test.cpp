// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <span>
#include <sys/stat.h>
#include <system_error>

#include <gtest/gtest.h>

#include <lockstep/base/atomic_file.h>

#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, std::string_view text) {
  AtomicFile target(file, {.sync = false});
  target.write(std::as_bytes(std::span(text)));
  target.commit();
}

fs::perms mode_of(const fs::path& file) { return fs::status(file).permissions(); }

TEST(AtomicFile, KeepsThePermissionsOfTheFileThatItReplaces) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  for (const auto mode : {fs::perms(0640), fs::perms(0600), fs::perms(0664)}) {
    fs::permissions(file, mode);
    write(file, "two");
    EXPECT_EQ(mode_of(file), mode);
  }
}

TEST(AtomicFile, IsThereWholeOrNotAtAll) {
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

TEST(MakeFolders, MakesThoseThatAreMissing) {
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
