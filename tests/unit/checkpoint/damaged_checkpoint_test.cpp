// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>
#include <lockstep/version.h>

#include "checkpoint/write_metadata.h"
#include "serialize/torch_format.h"
#include "serialize/zip.h"
#include "support/error_of.h"
#include "unit/checkpoint/manager_test.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::contents;
using testing::damage;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::steps_in;

class DamagedCheckpoint : public testing::ManagerTest {};

INSTANTIATE_TEST_SUITE_P(Saving, DamagedCheckpoint, ::testing::Bool(), testing::saving_name);

// It came back to the one before, which is further from the end than the damaged one.
TEST_P(DamagedCheckpoint, IsNotTheLatest) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, contents(step));
  manager.wait();
  damage(folder_ / "step-00000030.pt");
  EXPECT_THAT(error_of([&] { manager.save(25, contents(25)); }), HasSubstr("step 25 is not saved"));
  EXPECT_EQ(manager.load_latest()->info.step, 20);
  manager.save(25, contents(25));
  manager.wait();
  EXPECT_EQ(CheckpointManager(folder_, options()).load_latest()->info.step, 25);
  manager.save(30, contents(30));
  manager.wait();
  EXPECT_THAT(error_of([&] { manager.save(26, contents(26)); }), HasSubstr("step 26 is not saved"));
}

// The run continues below it, and its own checkpoints count.
TEST_P(DamagedCheckpoint, IsNeitherLastNorBestNorCounted) {
  auto given = options();
  given.keep_last = 2;
  CheckpointManager manager(folder_, given);
  manager.save(50, contents(50), 0.5);
  manager.save(100, contents(100), 0.9);
  manager.wait();
  damage(folder_ / "step-00000100.pt");
  EXPECT_EQ(manager.load_latest()->info.step, 50);
  manager.save(60, contents(60), 0.6);
  manager.save(70, contents(70), 0.1);
  manager.save(80, contents(80), 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(60, 70, 80, 100));
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(80)));
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(60)));
  manager.save(110, contents(110), 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(60, 80, 100, 110));
  manager.save(120, contents(120), 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(60, 110, 120));
}

TEST_P(DamagedCheckpoint, ThatIsReplacedCountsAgain) {
  auto given = options();
  given.keep_last = 2;
  CheckpointManager manager(folder_, given);
  manager.save(50, contents(50), 0.5);
  manager.save(100, contents(100), 0.9);
  manager.wait();
  damage(folder_ / "step-00000100.pt");
  EXPECT_EQ(manager.load_best()->info.step, 50);
  manager.save(100, contents(101), 0.9);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(50, 100));
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(101)));
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(101)));
}

TEST_P(DamagedCheckpoint, LinksNeverPointToDamagedCheckpoints) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, contents(step), 0.5);
  manager.wait();
  damage(folder_ / "step-00000010.pt");
  damage(folder_ / "step-00000020.pt");
  damage(folder_ / "step-00000030.pt");
  EXPECT_THAT(error_of([&] { manager.load_latest(); }), HasSubstr("none of the 3 checkpoints"));
  manager.remove_after(20);
  EXPECT_THAT(steps_in(manager), ElementsAre(10, 20));
  EXPECT_FALSE(fs::is_symlink(folder_ / "last.pt"));
  EXPECT_FALSE(fs::is_symlink(folder_ / "best.pt"));
}

// That it has begun, in a thread, mends nothing.
TEST_P(DamagedCheckpoint, AFailedReplacementOfADamagedCheckpointLeavesItDamaged) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, contents(step));
  manager.wait();
  damage(folder_ / "step-00000030.pt");
  EXPECT_EQ(manager.load_latest()->info.step, 20);
  fs::remove(folder_ / "step-00000030.pt");
  fs::create_directories(folder_ / "step-00000030.pt" / "in the way");
  const auto error = error_of([&] {
    manager.save(30, contents(30));
    manager.wait();
  });
  EXPECT_THAT(error, HasSubstr("step-00000030.pt"));
  manager.save(25, contents(25));
  manager.wait();
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(25)));
}

TEST_P(DamagedCheckpoint, WithoutAnIntactCheckpointLoadingFails) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  damage(folder_ / "step-00000001.pt");
  EXPECT_THAT(error_of([&] { manager.load_latest(); }), HasSubstr("none of the 1 checkpoints can be loaded"));
}

TEST_P(DamagedCheckpoint, IsSkipped) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {1, 2, 3}) manager.save(step, contents(step));
  manager.wait();
  damage(folder_ / "step-00000003.pt");
  fs::resize_file(folder_ / "step-00000002.pt", 100);
  const auto latest = manager.load_latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->info.step, 1);
  EXPECT_THAT(error_of([&] { manager.load(3); }), HasSubstr("step-00000003.pt"));
}

TEST_P(DamagedCheckpoint, WithoutTheMetricsFileOnlyMetricsAreLost) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1), 0.5);
  manager.wait();
  std::ofstream(folder_ / "metrics.json") << "{ damaged";
  EXPECT_EQ(manager.load_latest()->info.step, 1);
  EXPECT_FALSE(manager.load_best());
}

class NewerCheckpoint : public DamagedCheckpoint {
 protected:
  NewerCheckpoint() {
    manager_.emplace(folder_, options());
    manager_->save(10, contents(10), 0.5);
    manager_->wait();
  }

  std::string error_of_latest() {
    return error_of<CheckpointError>([&] { manager_->load_latest(); });
  }

  std::string refusal(const std::string& file, int format) const {
    return fmt::format(
        "{}: written by a later Lockstep in checkpoint format {}; this version, {}, reads up to 1: update Lockstep",
        (folder_ / file).string(), format, lockstep::version());
  }

  std::optional<CheckpointManager> manager_;
};

INSTANTIATE_TEST_SUITE_P(Saving, NewerCheckpoint, ::testing::Values(false), testing::saving_name);

void write_file(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::string file_of_format(const std::string& format) {
  std::string bytes;
  serialize::ZipWriter zip([&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  zip.add("data.pkl", serialize::pickle_value(Dict{{"step", 20}}).pickle);
  zip.add(".lockstep_format", format);
  zip.finish();
  return bytes;
}

TEST_P(NewerCheckpoint, IsRefusedAndNotSkipped) {
  const std::string name = "step-00000020.pt";
  write_file(folder_ / name, file_of_format("1"));
  EXPECT_EQ(manager_->load_latest()->info.step, 20);
  write_file(folder_ / name, file_of_format("3"));
  EXPECT_THAT(error_of_latest(),
              AllOf(HasSubstr(refusal(name, 3)), HasSubstr("no other checkpoint takes its place")));
  EXPECT_THAT(error_of<CheckpointReadError>([&] { load(folder_ / name); }), HasSubstr(refusal(name, 3)));
  const auto names_the_file = ::testing::Property(&Error::file, folder_ / name);
  EXPECT_THAT([&] { load(folder_ / name); }, ::testing::Throws<CheckpointReadError>(names_the_file));
  EXPECT_THAT([&] { manager_->load_latest(); }, ::testing::Throws<CheckpointError>(names_the_file));
  write_file(folder_ / name, file_of_format("x"));
  EXPECT_EQ(manager_->load_latest()->info.step, 10) << "damaged";
}

TEST_P(NewerCheckpoint, InPartsIsRefused) {
  distributed_checkpoint::save(contents(20).as_dict(), folder_ / "step-00000020", {.sync = false});
  const auto metadata = folder_ / "step-00000020" / ".metadata";
  std::ifstream stream(metadata, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::string pickle(distributed_checkpoint::without_trailer(text).pickle);
  const std::string field = "lockstep_format";
  const auto value = pickle.find(field) + field.size();
  ASSERT_EQ(pickle.find("K\x01", value), value) << "after the name comes the number 1";
  pickle[value + 1] = 4;
  write_file(metadata, pickle);
  const auto expected = refusal("step-00000020/.metadata", 4);
  EXPECT_THAT(error_of<CheckpointReadError>([&] { distributed_checkpoint::load(folder_ / "step-00000020"); }),
              HasSubstr(expected));
  EXPECT_THAT(error_of_latest(), HasSubstr(expected));
}

TEST_P(NewerCheckpoint, OfPyTorchIsRefused) {
  auto bytes = save_bytes(contents(20));
  const auto version = bytes.find("3\n", bytes.find("archive/version"));
  bytes.replace(version, 2, "99");
  EXPECT_THAT(
      error_of<CheckpointReadError>([&] { load_bytes(bytes, {}, "net.pt"); }),
      HasSubstr(
          "net.pt: written by a later PyTorch in file format 99; this LibTorch reads up to 10: update LibTorch"));
}

}  // namespace
}  // namespace lockstep
