// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "data/folder_listing.h"
#include "support/ranks.h"
#include "unit/data/fixtures.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using data::FolderIndex;
using data::read_folder_index;
using data::write_folder_index;
using data::testing::read_file;
using data::testing::write_file;
using ::testing::HasSubstr;
using ::testing::Not;

FolderIndex index_of(std::size_t samples) {
  FolderIndex index;
  index.times = {{.path = "", .nanoseconds = 1}, {.path = "a", .nanoseconds = 2}};
  index.listing.classes.classes = {"a"};
  index.listing.folders = {{.path = "a", .target = 0}};
  for (std::size_t i = 0; i < samples; ++i) index.listing.add(0, std::to_string(i) + ".png");
  return index;
}

bool equal(const data::FolderListing& a, const data::FolderListing& b) {
  return a.names == b.names && a.name_ends == b.name_ends && a.folder_ids == b.folder_ids;
}

fs::path shared_folder() { return std::getenv("TEST_FOLDER"); }

// Returns when both ranks are here; the watchdog of run_ranks() ends a rank that waits too long.
void meet() {
  write_file(shared_folder() / std::getenv("RANK"), "");
  while (!fs::exists(shared_folder() / "0") || !fs::exists(shared_folder() / "1")) std::this_thread::yield();
}

const Scenario write_one_index("folder index: both ranks write it", [] {
  constexpr int kRounds = 100;
  const auto index = index_of(50'000);
  const auto file = shared_folder() / "index";
  meet();
  for (int round = 0; round < kRounds; ++round) {
    write_folder_index(index, file);
    const auto found = read_folder_index(file);
    ASSERT_TRUE(found && equal(found->listing, index.listing)) << "round " << round;
  }
});

TEST(FolderIndex, RanksThatWriteItAtOnceLeaveAWholeOne) {
  const TempFolder folder;
  const auto results = run_ranks(write_one_index, {.env = {{"TEST_FOLDER", folder.path().string()}}});
  expect_all_passed(results);
  for (const auto& result : results) EXPECT_THAT(result.err, Not(HasSubstr("cannot be written")));
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().extension(), ".part") << entry.path();
  }
}

// Also where the checksum is right: another program may have written it.
TEST(FolderIndex, ATruthValueThatIsNoneIsRefused) {
  const TempFolder folder;
  const auto file = folder / "index";
  write_folder_index(index_of(1), file);
  auto bytes = read_file(file);
  constexpr std::size_t kNoExtensions = 8;
  bytes[bytes.find('\n') + 1 + kNoExtensions] = 2;  // allow_empty
  const auto body = bytes.size() - sizeof(std::uint32_t);
  const auto sum =
      static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), body));
  bytes.replace(body, sizeof sum, reinterpret_cast<const char*>(&sum), sizeof sum);
  write_file(file, bytes);
  EXPECT_FALSE(read_folder_index(file));
}

}  // namespace
}  // namespace lockstep::testing
