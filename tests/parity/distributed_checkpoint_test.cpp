// SPDX-License-Identifier: BSD-3-Clause
// The folders of torch.distributed.checkpoint, both ways.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace dcp = distributed_checkpoint;
namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Scenario saves("write a folder together", [] {
  const auto context = init({.backend = "gloo"});
  const fs::path folder = std::getenv("FOLDER");
  dcp::save(load(folder / "plain.pt").as_dict(), folder / "cpp");
  EXPECT_TRUE(equal(dcp::load(folder / "cpp"), load(folder / "plain.pt")));
});

TEST(DistributedCheckpoint, IsReadByBothLanguages) {
  const TempFolder folder;
  run_python("parity/distributed_checkpoints.py", {.args = {"make", folder.path().string()}});
  EXPECT_TRUE(equal(dcp::load(folder.path() / "plain"), load(folder.path() / "plain.pt")));
  EXPECT_TRUE(equal(dcp::load(folder.path() / "sharded"), load(folder.path() / "sharded.pt")));

  const dcp::Reader reader(folder.path() / "sharded");
  const auto rows = torch::arange(35, torch::kFloat).view({7, 5});
  EXPECT_TRUE(
      equal(reader.read_part("rows", {2, 1}, {4, 3}), rows.slice(0, 2, 6).slice(1, 1, 4).contiguous()));
  EXPECT_TRUE(equal(reader.read_part("columns", {1, 1}, {1, 2}),
                    torch::arange(12).view({3, 4}).slice(0, 1, 2).slice(1, 1, 3).contiguous()));
  EXPECT_EQ(reader.shape("columns"), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(reader.dtype("columns"), torch::kLong);
  EXPECT_THAT(error_of([&] {
                reader.read_part("rows", {5, 0}, {3, 5});
              }),
              HasSubstr("no part of this shape"));
  EXPECT_THAT(error_of([&] { reader.read("nothing"); }), HasSubstr("no entry 'nothing'"));

  for (const int ranks : {1, 2}) {
    expect_all_passed(run_ranks(saves, {.world_size = ranks, .env = {{"FOLDER", folder.path().string()}}}));
    EXPECT_EQ(run_python("parity/distributed_checkpoints.py", {.args = {"check", folder.path().string()}}),
              "same\n");
  }
}

fs::path data_file_in(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".distcp") return entry.path();
  }
  return {};
}

TEST(DistributedCheckpoint, ForeignOrDamagedFoldersAreNamed) {
  const TempFolder temp;
  const auto folder = temp.path() / "run";
  EXPECT_THAT(error_of([&] { dcp::load(folder); }), HasSubstr(".metadata"));
  dcp::save({{"w", torch::ones({3})}, {"n", 1}}, folder);
  EXPECT_TRUE(equal(dcp::load(folder), Dict{{"w", torch::ones({3})}, {"n", 1}}));
  const auto file = data_file_in(folder);
  fs::resize_file(file, 100);
  EXPECT_THAT(error_of([&] { dcp::load(folder); }), HasSubstr(file.string()));
  fs::resize_file(folder / ".metadata", 100);
  EXPECT_THAT(error_of([&] { dcp::load(folder); }), HasSubstr(".metadata"));
  EXPECT_THAT(error_of([&] { dcp::save({{"w", torch::ones({3}).to_sparse()}}, folder); }), HasSubstr("'w'"));
}

}  // namespace
}  // namespace lockstep::testing
