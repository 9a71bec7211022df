// SPDX-License-Identifier: BSD-3-Clause
#include "base/file_lock.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/ranks.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
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

void hold_for_ever() {
  const FileLock lock(::getenv("TEST_LOCK"), Deadline(seconds(10)), "testing");
  write_file(std::string(::getenv("TEST_LOCK")) + ".held", "");
  while (true) ::pause();
}
const lockstep::testing::Scenario hold_scenario("file_lock.hold", hold_for_ever);

TEST(FileLock, AKilledHolderReleasesTheLock) {
  const TempFolder folder;
  const auto file = folder / "lock";
  const auto check_and_kill = [&](const std::vector<int>& pids) {
    for (const Deadline deadline(seconds(60));
         !std::filesystem::exists(folder / "lock.held") && !deadline.expired();) {
      ::usleep(2'000);
    }
    EXPECT_THROW(FileLock(file, Deadline(milliseconds(5)), "testing"), TimeoutError);
    ::kill(pids[0], SIGKILL);
    EXPECT_NO_THROW(FileLock(file, Deadline(seconds(60)), "testing"));
  };
  const auto results = lockstep::testing::run_ranks(
      hold_scenario,
      {.world_size = 1, .env = {{"TEST_LOCK", file.string()}}, .while_running = check_and_kill});
  EXPECT_EQ(results[0].signal, SIGKILL);
}

}  // namespace
}  // namespace lockstep::data
