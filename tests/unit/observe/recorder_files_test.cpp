// SPDX-License-Identifier: BSD-3-Clause
#include "observe/recorder_files.h"

#include <cstdint>
#include <fcntl.h>
#include <fstream>
#include <sys/file.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "runs.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

observe::Run small_run() {
  return run_of({{member(0, 2, {call(1, 5), call(2, 4)}, true)}, {member(1, 2, {call(1, 5)}, false)}});
}

TEST(RecorderFiles, AreReadAsTheyWereWritten) {
  const TempFolder folder;
  const auto run = small_run();
  const auto files = observe::write_recorder_files(run, folder.path() / "new" / "folder");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[1].filename(), "rank_1");
  EXPECT_EQ(files[2].filename(), "node3.0.json");
  for (const auto& file : files) {
    EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write) << file;
  }
  EXPECT_EQ(to_json(observe::read_recorder_files(folder.path() / "new" / "folder")), to_json(run));
}

TEST(RecorderFiles, OfAllHostsAreOneRun) {
  const TempFolder folder;
  auto other = small_run();
  other.host = "node4";
  other.ranks[0].rank = 2;
  other.ranks[1].rank = 3;
  const auto later_start = 1000 * kSecond;  // of the other host, and with it of its clock
  other.taken_at -= later_start;
  for (auto& rank : other.ranks)
    for (auto& call : rank.groups[0].calls) call.issued_at -= later_start;
  observe::write_recorder_files(small_run(), folder.path());
  observe::write_recorder_files(other, folder.path());
  const auto whole = observe::read_recorder_files(folder.path());
  ASSERT_EQ(whole.ranks.size(), 4U);
  EXPECT_EQ(whole.ranks[3].rank, 3);
  EXPECT_EQ(whole.ranks[2].groups[0].calls[0].issued_at, small_run().ranks[0].groups[0].calls[0].issued_at);
  EXPECT_EQ(whole.ranks[2].describe(), "rank 2 (pid 100 on node4)");
}

TEST(RecorderFiles, OfTheFirstFailureStay) {
  const TempFolder folder;
  auto run = small_run();
  observe::keep_recorder_files(run, folder.path());
  const auto first = to_json(run);
  run.taken_at += kSecond;
  observe::keep_recorder_files(run, folder.path());
  EXPECT_EQ(to_json(observe::read_recorder_files(folder.path())), first);
  run.ranks[0].pid = 7;
  observe::keep_recorder_files(run, folder.path());
  EXPECT_EQ(to_json(observe::read_recorder_files(folder.path())), to_json(run)) << "another run";
}

TEST(RecorderFiles, OfASignalAreWrittenByOneRank) {
  const TempFolder folder;
  auto run = small_run();
  EXPECT_TRUE(observe::replace_recorder_files(run, folder.path()));
  const auto mark = folder.path() / ".node3.0.signal";
  fs::resize_file(mark, 0);  // of another time
  {
    const UniqueFd other(::open(mark.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_FALSE(observe::replace_recorder_files(run, folder.path())) << "another rank writes them";
  }
  run.taken_at += kSecond;
  EXPECT_TRUE(observe::replace_recorder_files(run, folder.path()));
  EXPECT_EQ(to_json(observe::read_recorder_files(folder.path())), to_json(run));
  EXPECT_EQ(fs::file_size(mark), sizeof(std::int64_t)) << "when they were written";
}

TEST(RecorderFiles, DamagedOnesAreNamed) {
  const TempFolder folder;
  const auto read = [&] { (void)observe::read_recorder_files(folder.path()); };
  EXPECT_THAT(read, ThrowsMessage<Error>(HasSubstr("has no file that `lockstep recorder dump` wrote")));
  std::ofstream(folder.path() / "node3.0.json") << "{\"ranks\": ";
  EXPECT_THAT(read, ThrowsMessage<Error>(HasSubstr("node3.0.json: not a recorder file of Lockstep")));
  std::ofstream(folder.path() / "node3.0.json") << R"({"lockstep_format": 99})";
  EXPECT_THAT(read,
              ThrowsMessage<Error>(HasSubstr("written by a later Lockstep in recorder file format 99")));
}

TEST(RecorderFiles, PicklesHaveTheOpcodesOfProtocolTwo) {
  EXPECT_EQ(observe::pickle_of({{"a", {nullptr, true, "x"}}}),
            std::string("\x80\x02}(X\x01\0\0\0a](N\x88X\x01\0\0\0xeu.", 23));
}

}  // namespace
}  // namespace lockstep::testing
