// SPDX-License-Identifier: BSD-3-Clause
#include "base/atomic_file.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <mutex>
#include <span>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/host.h"
#include "base/process_state.h"
#include "child.h"
#include "support/file_system_faults.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
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

TEST(AtomicFile, ReplacesAReadOnlyFileAndALink) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  fs::permissions(file, fs::perms(0444));
  write(file, "four");
  EXPECT_EQ(fs::file_size(file), 4U);
  EXPECT_EQ(mode_of(file), fs::perms(0444));
  fs::create_symlink("a", temp.path() / "link");
  write(temp.path() / "link", "three");
  EXPECT_EQ(fs::symlink_status(temp.path() / "link").type(), fs::file_type::regular);
  EXPECT_EQ(fs::file_size(file), 4U);
}

TEST(AtomicFile, WritesSpecialFilesInPlace) {
  const TempFolder temp;
  const auto pipe = temp.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::ifstream reader;
  std::thread opening([&] { reader.open(pipe); });
  write(pipe, "through the pipe");
  opening.join();
  std::string text;
  std::getline(reader, text);
  EXPECT_EQ(text, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
  write(temp.path() / "a", "longer before");
  std::ofstream stream(temp.path() / "a");
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code code;
    if (fs::read_symlink(entry.path(), code) == temp.path() / "a")
      fs::create_symlink(entry.path(), temp.path() / "link");
  }
  write(temp.path() / "link", "after!");  // as /dev/stdout
  EXPECT_TRUE(fs::is_symlink(temp.path() / "link"));
  EXPECT_EQ(fs::file_size(temp.path() / "a"), 6U);
}

TEST(AtomicFile, NewFilesHaveTheModeOfTheUmask) {
  const TempFolder temp;
  const auto before = ::umask(027);
  write(temp.path() / "unnamed", "x");
  {
    const ScopedFaults faults({.no_links = true});
    write(temp.path() / "copied", "x");
  }
  const ScopedFaults faults({.no_unnamed_files = true});
  write(temp.path() / "named", "x");
  ::umask(before);
  for (const auto* name : {"unnamed", "copied", "named"})
    EXPECT_EQ(mode_of(temp.path() / name), fs::perms(0640));
}

TEST(AtomicFile, ReportsWhenTheNewFileIsNotSynced) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  write(file, "one");
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    AtomicFile target(file);
    target.write(std::as_bytes(std::span(std::string_view("three"))));
    const ScopedFaults faults({.error_of_folders = error});
    EXPECT_THROW(target.commit(), NotOnDisk);
    EXPECT_EQ(fs::file_size(file), 5U);
  }
  const ScopedFaults faults({.error_of_folders = EINVAL});  // as on a file system that cannot sync folders
  AtomicFile target(file);
  EXPECT_NO_THROW(target.commit());
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

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// The three ways in which a file gets its name.
const FileSystemFaults kWays[] = {{}, {.no_unnamed_files = true}, {.no_links = true}};

// Whole files have one letter, as often as its number says.
void expect_whole(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text, std::string(static_cast<std::size_t>(text[0]) * 1000, text[0]));
}

TEST(AtomicFile, IsWholeWithManyWriters) {
  for (const auto& way : kWays) {
    const ScopedFaults faults(way);
    const TempFolder temp;
    const auto file = temp.path() / "a";
    const auto write_often = [&](char letter) {
      for (int i = 0; i < 20; ++i) {
        AtomicFile target(file, {.sync = false});
        const std::string half(static_cast<std::size_t>(letter) * 500, letter);
        for (int part = 0; part < 2; ++part) target.write(std::as_bytes(std::span(half)));
        target.commit();
        expect_whole(file);
      }
      return true;
    };
    Child child([&] { return write_often('c') && !::testing::Test::HasFailure(); });
    std::thread other([&] { write_often('b'); });
    write_often('a');
    other.join();
    EXPECT_TRUE(child.passed());
    EXPECT_THAT(names_in(temp.path()), ElementsAre("a"));
  }
}

TEST(AtomicFile, LeavesNothingWithoutACommit) {
  for (const auto& way : kWays) {
    const ScopedFaults faults(way);
    const TempFolder temp;
    {
      AtomicFile target(temp.path() / "a");
      target.write(std::as_bytes(std::span(std::string_view("half"))));
    }
    fs::create_directory(temp.path() / "folder");
    AtomicFile target(temp.path() / "folder");
    EXPECT_THROW(target.commit(), std::system_error);
    EXPECT_THROW(AtomicFile(temp.path() / "none" / "a"), std::system_error);
    EXPECT_THAT(names_in(temp.path()), SizeIs(2));  // of the target, which has not ended
  }
}

TEST(AtomicFile, NamesMayBeAsLongAsTheFileSystemAllows) {
  for (const auto& way : kWays) {
    const ScopedFaults faults(way);
    const TempFolder temp;
    const std::string name(255, 'n');
    write(temp.path() / name, "x");
    EXPECT_THAT(names_in(temp.path()), ElementsAre(name));
  }
}

// A process that is killed while its file has a name.
void leave_one(const fs::path& file) {
  const ScopedFaults faults({.no_unnamed_files = true});
  Child child([&] {
    AtomicFile target(file);
    ::raise(SIGKILL);
    return true;
  });
  EXPECT_FALSE(child.passed());
}

TEST(AtomicFile, RemovesWhatKilledWritersLeft) {
  for (const auto& way : kWays) {
    const TempFolder temp;
    write(temp.path() / "a", "x");
    fs::permissions(temp.path() / "a", fs::perms(0444));
    leave_one(temp.path() / "a");
    EXPECT_THAT(names_in(temp.path()), SizeIs(2));
    const ScopedFaults faults(way);
    write(temp.path() / "a", "x");
    EXPECT_THAT(names_in(temp.path()), ElementsAre("a"));
  }
}

TEST(AtomicFile, KeepsTheFilesOfLiveWritersAndOfOtherPrograms) {
  const TempFolder temp;
  const std::vector<std::string> others{"a.part",
                                        "a.tmp",
                                        ".lockstep-0123abcd-0123456789abcde.part",
                                        ".lockstep-0123abcd-0123456789abcdeX.part",
                                        ".lockstep-0123abcd-0123456789abcdef.part2",
                                        ".lockstep.part"};
  for (const auto& name : others) std::ofstream(temp.path() / name) << "x";
  const std::string link = ".lockstep-0123abcd-0000000000000001.part";
  fs::create_symlink("a.part", temp.path() / link);
  const std::string folder = ".lockstep-0123abcd-0000000000000002.part";
  fs::create_directory(temp.path() / folder);
  {
    const ScopedFaults faults({.no_unnamed_files = true});
    AtomicFile live(temp.path() / "live");
    write(temp.path() / "a", "x");
    live.commit();
  }
  auto expected = others;
  expected.insert(expected.end(), {"a", "live", link, folder});
  EXPECT_THAT(names_in(temp.path()), ::testing::UnorderedElementsAreArray(expected));
}

// As writers of this and another boot leave them, one now and one two days ago.
void leave_four(const fs::path& folder) {
  const auto own = first_line("/proc/sys/kernel/random/boot_id").substr(0, 8);
  const auto name = [&](const std::string& boot, const char* random) {
    return folder / (".lockstep-" + boot + "-000000000000000" + random + ".part");
  };
  for (const auto& boot : {own, std::string("ffffffff")}) {
    for (const auto* random : {"0", "1"}) std::ofstream(name(boot, random)) << "x";
    fs::last_write_time(name(boot, "1"), fs::file_time_type::clock::now() - std::chrono::hours(48));
  }
}

TEST(AtomicFile, KnowsWhoseLocksDecide) {
  struct Case {
    FileSystemFaults faults;
    std::size_t left;
  };
  // Of one host; shared by hosts, where a new file of another boot may have a writer; without locks.
  for (const auto& [given, left] : {Case{{}, 0}, Case{{.is_shared = true}, 1}, Case{{.no_locks = true}, 2}}) {
    const TempFolder temp;
    leave_four(temp.path());
    const ScopedFaults faults(given);
    write(temp.path() / "a", "x");
    EXPECT_THAT(names_in(temp.path()), SizeIs(1 + left));
  }
}

// Lines of the log that a child process writes.
std::vector<std::string> lines_of_child(const std::function<void()>& body) {
  const TempFolder temp;
  static std::string file;
  file = temp.file("log");
  Child child([&] {
    set_log_writer([](std::string_view line) { std::ofstream(file, std::ios::app) << line; });
    body();
    return true;
  });
  EXPECT_TRUE(child.passed());
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(AtomicFile, WarnsOnceWhenSeveralRanksSaveOneFile) {
  const TempFolder temp;
  const auto file = temp.path() / "a";
  const auto save = [&](const std::function<void()>& meanwhile, bool for_one_rank) {
    AtomicFile target(file, {.for_one_rank = for_one_rank});
    meanwhile();
    target.commit();
  };
  const auto by_another = [&] { Child([&] { return write(file, "other"), true; }).passed(); };
  const auto none = [] {};
  EXPECT_THAT(lines_of_child([&] {
                set_current_world({.rank = 1, .size = 2});
                for (int i = 0; i < 3; ++i) save(by_another, true);
              }),
              ElementsAre(AllOf(HasSubstr("rank 1] warning: " + file.string()),
                                HasSubstr("another process replaced it"), HasSubstr("if (rank == 0)"))));
  EXPECT_THAT(lines_of_child([&] {
                save(by_another, true);  // in a job of one rank
                set_current_world({.rank = 1, .size = 2});
                save(none, true);
                save(by_another, false);
                save([&] { save(none, true); }, true);  // of this process
                by_another();
                save(none, true);
                save([&] { fs::remove(file); }, true);
              }),
              IsEmpty());
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
