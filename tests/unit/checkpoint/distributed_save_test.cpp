// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/distributed_save.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "support/error_of.h"
#include "support/file_system_faults.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace dcp = distributed_checkpoint;
namespace fs = std::filesystem;

fs::path only_data_file(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".distcp") found.push_back(entry.path());
  }
  EXPECT_EQ(found.size(), 1U);
  return found.at(0);
}

// A size of 1 lets a contiguous tensor have strides of another length in a file.
TEST(DistributedSave, TensorsOfAnyStrides) {
  const TempFolder temp;
  Dict contents;
  for (std::int64_t n = 1; n <= 300; ++n) contents.set(n, torch::arange(n).view({n, 1}).t());
  const auto last = torch::rand({512, 512, 1, 1}).contiguous(torch::MemoryFormat::ChannelsLast);
  contents.set("channels last", last);
  contents.set("view", torch::rand({7, 300}).slice(0, 3, 4).t());
  contents.set("empty", torch::empty({5, 0, 1}).transpose(0, 2));
  dcp::save(contents, temp.path(), {.sync = false});
  const auto loaded = dcp::load(temp.path());
  for (const auto& [key, value] : contents) {
    EXPECT_TRUE(loaded.at(key).as_tensor().equal(value.as_tensor())) << repr(key);
  }
}

TEST(DistributedSave, IsCompleteOnlyWithTheFilesOfThisSave) {
  const TempFolder temp;
  const auto save = [&](std::int64_t length) {
    return dcp::DistributedSave({{"w", torch::ones({length})}}, {}, dcp::begin_save(temp.path(), {}, false));
  };
  // A late writer of a run that has ended.
  auto before = std::optional(save(100));
  auto now = save(100);
  before->write(temp.path(), false);
  EXPECT_TRUE(before->is_complete(temp.path()));
  before.reset();
  EXPECT_FALSE(now.is_complete(temp.path()));
  now.write(temp.path(), false);
  EXPECT_TRUE(now.is_complete(temp.path()));
  now.commit(temp.path(), false);
  const auto file = only_data_file(temp.path());
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_FALSE(now.is_complete(temp.path()));
  now.give_up(temp.path());
  EXPECT_THAT(error_of([&] { now.is_complete(temp.path()); }), ::testing::HasSubstr("could not write it"));
}

TEST(DistributedSave, KeepsTheFilesOfASaveInProgress) {
  const TempFolder temp;
  const auto save = [&](double value) {
    return dcp::DistributedSave({{"w", torch::full({3}, value)}}, {},
                                dcp::begin_save(temp.path(), {}, false));
  };
  const auto value = [&] { return dcp::load(temp.path())["w"].as_tensor()[0].item<double>(); };
  auto first = save(1), second = save(2);
  first.write(temp.path(), false);
  second.write(temp.path(), false);
  first.commit(temp.path(), false);
  EXPECT_EQ(value(), 1);
  second.commit(temp.path(), false);
  EXPECT_EQ(value(), 2);
  only_data_file(temp.path());
}

// As on a folder that several hosts have mounted.
TEST(DistributedSave, KeepsTheFilesOfASaveInProgressWithoutLocks) {
  const ScopedFaults faults({.no_locks = true});
  const TempFolder temp;
  const auto leftover = temp.path() / "__0_0123456789abcdef.distcp";
  std::ofstream(leftover) << "left";
  fs::last_write_time(leftover, fs::file_time_type::clock::now() - std::chrono::hours(48));
  dcp::DistributedSave first({{"w", torch::ones({3})}}, {}, dcp::begin_save(temp.path(), {}, false));
  first.write(temp.path(), false);
  for (int i = 0; i < 2; ++i) dcp::save({{"w", torch::zeros({3})}}, temp.path());
  EXPECT_FALSE(fs::exists(leftover));
  first.commit(temp.path(), false);
  EXPECT_TRUE(dcp::load(temp.path())["w"].as_tensor().equal(torch::ones({3})));
  only_data_file(temp.path());
}

TEST(DistributedSave, RemovesLeftoverFiles) {
  const TempFolder temp;
  std::ofstream(temp.path() / "__0_0.distcp") << "Python's";
  std::ofstream(temp.path() / "__1_0123456789abcdef.distcp.part") << "left";
  std::ofstream(temp.path() / "notes.txt") << "mine";
  dcp::save({{"w", torch::ones({3})}}, temp.path());
  only_data_file(temp.path());
  EXPECT_FALSE(fs::exists(temp.path() / "__1_0123456789abcdef.distcp.part"));
  EXPECT_TRUE(fs::exists(temp.path() / "notes.txt"));
}

}  // namespace
}  // namespace lockstep::testing
