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

class DamagedIndex : public ::testing::Test {
 protected:
  fs::path file() const { return folder_ / "index"; }
  bool is_refused(const FolderIndex& index) const {
    write_folder_index(index, file());
    return !read_folder_index(file());
  }
  // Whether the bytes are, with their right checksum.
  bool is_refused_as(std::string body) const {
    const auto sum =
        static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()));
    write_file(file(), body.append(reinterpret_cast<const char*>(&sum), sizeof sum));
    return !read_folder_index(file());
  }
  std::string good_body() const {
    write_folder_index(index_of(3), file());
    const auto bytes = read_file(file());
    return bytes.substr(0, bytes.size() - sizeof(std::uint32_t));
  }

 private:
  TempFolder folder_{};
};

TEST_F(DamagedIndex, AGoodOneIsAccepted) {
  EXPECT_FALSE(is_refused(index_of(3)));
  EXPECT_FALSE(is_refused_as(good_body()));
}

TEST_F(DamagedIndex, NumbersThatLeadOutsideAreRefused) {
  auto index = index_of(3);
  index.listing.name_ends[2] += 1;
  EXPECT_TRUE(is_refused(index));
  index = index_of(3);
  index.listing.name_ends[1] = index.listing.name_ends[0] - 1;
  EXPECT_TRUE(is_refused(index));
  index = index_of(3);
  index.listing.folder_ids[2] = 1;
  EXPECT_TRUE(is_refused(index));
  index = index_of(3);
  index.listing.folder_ids.push_back(0);
  EXPECT_TRUE(is_refused(index));
}

TEST_F(DamagedIndex, OtherBytesAreRefused) {
  const auto body = good_body();
  EXPECT_TRUE(is_refused_as(body + "x"));
  for (std::size_t size = 0; size < body.size(); ++size) EXPECT_TRUE(is_refused_as(body.substr(0, size)));
  auto other = body;
  other[other.find('\n') - 1] = '2';  // the version
  EXPECT_TRUE(is_refused_as(other));
  other = body;
  constexpr std::size_t kNoExtensions = 8;
  other[other.find('\n') + 1 + kNoExtensions] = 2;  // allow_empty
  EXPECT_TRUE(is_refused_as(other));
  good_body();
  auto bytes = read_file(file());
  bytes[bytes.find("png")] = 'x';
  write_file(file(), bytes);
  EXPECT_FALSE(read_folder_index(file()));
}

}  // namespace
}  // namespace lockstep::testing
