// SPDX-License-Identifier: BSD-3-Clause
#include "base/file_lock.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "child.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(FileLock, IsFreeAgainAfterItsScope) {
  const TempFolder folder;
  { const FileLock lock(folder / "lock", Deadline(seconds(10)), "testing"); }
  EXPECT_NO_THROW(FileLock(folder / "lock", Deadline(milliseconds(0)), "testing"));
}

TEST(FileLock, TimesOutNamingTheFile) {
  const TempFolder folder;
  const FileLock lock(folder / "lock", Deadline(seconds(10)), "testing");
  EXPECT_THAT([&] { FileLock(folder / "lock", Deadline(milliseconds(5)), "testing"); },
              ThrowsMessage<TimeoutError>(HasSubstr((folder / "lock").string())));
}

TEST(FileLock, NamesAFileThatCannotBeOpened) {
  const TempFolder folder;
  EXPECT_THAT([&] { FileLock(folder / "no/lock", Deadline(seconds(1)), "testing"); },
              ThrowsMessage<std::filesystem::filesystem_error>(HasSubstr("no/lock")));
}

TEST(FileLock, ARemovedFileLocksNobodyOut) {
  const TempFolder folder;
  std::atomic<int> holders = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) {
        const FileLock lock(folder / "lock", Deadline(seconds(60)), "testing", FileLock::After::remove_file);
        EXPECT_EQ(++holders, 1);
        --holders;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(std::filesystem::exists(folder / "lock"));
}

TEST(FileLock, AKilledHolderReleasesTheLock) {
  const TempFolder folder;
  const auto file = folder / "lock";
  {
    Child holder([&] {
      const FileLock lock(file, Deadline(seconds(10)), "testing");
      std::ofstream(folder / "held").flush();
      while (true) ::pause();
      return false;
    });
    for (const Deadline deadline(seconds(60));
         !std::filesystem::exists(folder / "held") && !deadline.expired();) {
      ::usleep(2'000);
    }
    EXPECT_THROW(FileLock(file, Deadline(milliseconds(5)), "testing"), TimeoutError);
  }  // kills the holder
  EXPECT_NO_THROW(FileLock(file, Deadline(seconds(0)), "testing"));
}

}  // namespace
}  // namespace lockstep::testing
