// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <lockstep/base/error.h>
#include <lockstep/data/vision.h>

#include "data/folder_listing.h"
#include "support/ranks.h"
#include "unit/data/fixtures.h"

namespace lockstep::testing::folder_index_test {
namespace {

namespace fs = std::filesystem;
using data::FolderIndex;
using data::read_folder_index;
using data::write_folder_index;
using data::testing::bytes_of_file;
using data::testing::write_file;
using ::testing::ElementsAre;
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
  constexpr int kRounds = 50;
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
    const auto bytes = bytes_of_file(file());
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
  for (std::size_t size = 0; size < body.size(); size += 7) EXPECT_TRUE(is_refused_as(body.substr(0, size)));
  auto other = body;
  other[other.find('\n') - 1] = '9';  // the version
  EXPECT_TRUE(is_refused_as(other));
  other = body;
  constexpr std::size_t kNoExtensions = 8;
  other[other.find('\n') + 1 + kNoExtensions] = 2;  // allow_empty
  EXPECT_TRUE(is_refused_as(other));
  other = body;
  other.replace(other.find('\n') + 1, kNoExtensions, kNoExtensions, '\x7f');  // more than memory holds
  EXPECT_TRUE(is_refused_as(other));
  good_body();
  auto bytes = bytes_of_file(file());
  bytes[bytes.find("png")] = 'x';
  write_file(file(), bytes);
  EXPECT_FALSE(read_folder_index(file()));
}

void touch_picture(const fs::path& file) {
  fs::create_directories(file.parent_path());
  write_file(file, "x");
}

// Gives the folder and all below it a modification time in the past, which an index cache trusts.
void age(const fs::path& root, int hours = 1) {
  const auto time = fs::file_time_type::clock::now() - std::chrono::hours(hours);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_directory()) fs::last_write_time(entry, time);
  }
  fs::last_write_time(root, time);
}

class IndexCache : public ::testing::Test {
 protected:
  fs::path root() const { return folder_ / "pictures"; }
  fs::path cache() const { return folder_ / "index"; }
  std::int64_t count() const { return data::ImageFolder(root(), {.index_cache = cache()}).size(); }

  TempFolder folder_{};
};

TEST_F(IndexCache, TheIndexCacheNoticesAddedRenamedAndRemovedFiles) {
  touch_picture(root() / "a/1.png");
  touch_picture(root() / "a/deep/2.png");
  age(root(), 5);
  EXPECT_EQ(count(), 2);
  ASSERT_TRUE(fs::exists(cache()));
  touch_picture(root() / "a/deep/3.png");
  age(root(), 4);
  EXPECT_EQ(count(), 3);
  fs::rename(root() / "a/1.png", root() / "a/1.txt");
  age(root(), 3);
  EXPECT_EQ(count(), 2);
  fs::remove_all(root() / "a/deep");
  touch_picture(root() / "b/4.png");
  touch_picture(root() / "a/5.png");
  age(root(), 2);
  EXPECT_EQ(count(), 2);
}

TEST_F(IndexCache, TheIndexCacheIsUsedWhileNoFolderChanges) {
  touch_picture(root() / "a/1.png");
  age(root());
  const auto time = fs::last_write_time(root() / "a");
  EXPECT_EQ(count(), 1);
  // A file that appears without a trace: only a cache does not see it.
  touch_picture(root() / "a/2.png");
  fs::last_write_time(root() / "a", time);
  EXPECT_EQ(count(), 1);
  const data::ImageFolder cached(root(), {.index_cache = cache()});
  EXPECT_EQ(cached.path(0), root() / "a/1.png");
  EXPECT_THAT(cached.classes(), ElementsAre("a"));
  EXPECT_EQ(data::ImageFolder(root(), {.extensions = {{".png"}}, .index_cache = cache()}).size(), 2);
}

TEST_F(IndexCache, TheIndexCacheIsForOneChoiceOfOptions) {
  touch_picture(root() / "a/1.png");
  fs::create_directories(root() / "empty");
  age(root());
  EXPECT_EQ(data::ImageFolder(root(), {.allow_empty = true, .index_cache = cache()}).size(), 1);
  EXPECT_THROW(count(), DataError);
}

TEST_F(IndexCache, TheIndexCacheMovesWithTheFolder) {
  touch_picture(root() / "a/1.png");
  age(root());
  EXPECT_EQ(count(), 1);
  const auto moved = folder_ / "moved";
  fs::rename(root(), moved);
  const data::ImageFolder dataset(moved, {.index_cache = cache()});
  EXPECT_EQ(dataset.path(0), moved / "a/1.png");
  EXPECT_THAT(dataset.class_to_idx(), ElementsAre(std::pair{"a", 0}));
}

TEST_F(IndexCache, TheIndexCacheNoticesTheChangeOfASingleFolder) {
  const auto keeping_time = [](const fs::path& folder, const auto& change) {
    const auto time = fs::last_write_time(folder);
    change();
    fs::last_write_time(folder, time);
  };
  touch_picture(root() / "a/1.png");
  touch_picture(root() / "a/deep/2.png");
  age(root());
  EXPECT_EQ(count(), 2);
  touch_picture(root() / "a/3.png");
  age(root() / "a", 2);
  EXPECT_EQ(count(), 3);
  touch_picture(root() / "b/4.png");
  age(root() / "b", 2);
  fs::last_write_time(root(), fs::last_write_time(root() / "b"));
  EXPECT_EQ(count(), 4);
  keeping_time(root() / "a", [&] { fs::remove_all(root() / "a/deep"); });
  EXPECT_EQ(count(), 3);
}

TEST_F(IndexCache, AnOlderTimeIsAlsoAChange) {
  touch_picture(root() / "a/1.png");
  age(root(), 1);
  EXPECT_EQ(count(), 1);
  touch_picture(root() / "a/2.png");
  age(root(), 2);
  EXPECT_EQ(count(), 2);
}

TEST_F(IndexCache, AnIndexCacheThatCannotBeWrittenIsNoError) {
  touch_picture(root() / "a/1.png");
  age(root());
  EXPECT_EQ(data::ImageFolder(root(), {.index_cache = folder_ / "missing/index"}).size(), 1);
  EXPECT_EQ(data::ImageFolder(root(), {.index_cache = folder_.path()}).size(), 1);
}

TEST_F(IndexCache, AFolderThatChangedJustNowIsNotCached) {
  touch_picture(root() / "a/1.png");
  EXPECT_EQ(count(), 1);
  EXPECT_FALSE(fs::exists(cache()));
}

TEST_F(IndexCache, ADamagedIndexCacheIsWrittenAnew) {
  touch_picture(root() / "a/1.png");
  age(root());
  EXPECT_EQ(count(), 1);
  const auto bytes = fs::file_size(cache());
  for (const auto size : {bytes - 1, bytes / 2, std::uintmax_t{3}, std::uintmax_t{0}}) {
    fs::resize_file(cache(), size);
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(fs::file_size(cache()), bytes);
  }
}

}  // namespace
}  // namespace lockstep::testing::folder_index_test
