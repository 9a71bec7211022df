// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/file_lock.h"

#include <cstdlib>
#include <signal.h>
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
              ThrowsMessage<DataError>(HasSubstr("no/lock")));
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
