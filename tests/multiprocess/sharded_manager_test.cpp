// SPDX-License-Identifier: BSD-3-Clause
// Managers whose ranks write their own parts.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <sys/resource.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "multiprocess/backends.h"
#include "parity/sharded_tensors.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing::sharded_manager_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Steps = std::vector<std::int64_t>;

class ShardedManager : public EveryBackend {
 protected:
  void run_here(const Scenario& scenario, std::map<std::string, std::string> env = {}) {
    env["FOLDER"] = temp_.path().string();
    run(scenario, std::move(env));
  }
  TempFolder temp_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, ShardedManager, backends_and_ranks({1, 2, 3}), name_of_case);

fs::path folder_of_run() { return *Env().get("FOLDER"); }

CheckpointManagerOptions by_every_rank(bool async) {
  return {.keep_last = 2, .async_save = async, .sync = false, .writing = CheckpointWriting::every_rank};
}

Dict whole_at(std::int64_t step) {
  auto whole = whole_tensors();
  whole.at("rows").as_tensor().fill_(step);
  return whole;
}

Dict contents_at(std::int64_t step, const Context& context) {
  return {{"model", sharded_tensors(whole_at(step), context.rank(), context.world_size())}, {"step", step}};
}

Dict place_for(const Context& context) {
  return {{"model", zeros_like(sharded_tensors(whole_at(0), context.rank(), context.world_size()))},
          {"step", 0}};
}

void expect_whole(const Value& contents, std::int64_t step) {
  EXPECT_EQ(contents["step"].as_int(), step);
  for (const auto& [name, tensor] : whole_at(step)) {
    EXPECT_TRUE(equal(contents["model"][name], tensor.as_tensor().contiguous())) << repr(name);
  }
}

Steps steps_in(const CheckpointManager& manager) {
  Steps steps;
  for (const auto& info : manager.checkpoints()) steps.push_back(info.step);
  return steps;
}

// Turns the bits of the second half of each data file round: a few bytes might be padding, which nobody
// misses.
std::ptrdiff_t unfinished_in(const fs::path& folder) {
  return std::ranges::count(fs::directory_iterator(folder), fs::path(".part"),
                            [](const auto& entry) { return entry.path().extension(); });
}

void damage(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".distcp") continue;
    std::fstream stream(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes(fs::file_size(entry.path()), '\0');
    stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    for (auto i = bytes.size() / 2; i < bytes.size(); ++i) bytes[i] = static_cast<char>(~bytes[i]);
    stream.seekp(0);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
}

const Scenario saves_and_loads("every rank writes and reads its parts", [] {
  const auto context = init({.backend = backend_under_test()});
  for (const bool async : {false, true}) {
    const auto folder = folder_of_run() / (async ? "async" : "blocking");
    CheckpointManager manager(folder, by_every_rank(async));
    auto there = place_for(context);
    EXPECT_FALSE(manager.load_latest(there));
    for (std::int64_t step = 1; step <= 5; ++step) {
      auto contents = contents_at(step, context);
      manager.save(step, contents, step == 2 ? 0.9 : 0.1);
      // The copy is saved, not the changed tensor.
      if (async) contents["model"]["rows"].get_if<ShardedTensor>()->local_shards[0].tensor.fill_(-1);
    }
    manager.save(5, contents_at(5, context), 0.2);
    manager.wait();
    EXPECT_EQ(steps_in(manager), (Steps{2, 4, 5}));
    EXPECT_EQ(manager.load_latest(there)->step, 5);
    EXPECT_TRUE(equal(there, contents_at(5, context)));
    EXPECT_EQ(manager.load_best(there)->metric, 0.9);
    EXPECT_TRUE(equal(there, contents_at(2, context)));
    EXPECT_EQ(manager.load(4, there).step, 4);
    EXPECT_TRUE(equal(there, contents_at(4, context)));
    expect_whole(manager.load_latest()->contents, 5);
    expect_whole(manager.load(2).contents, 2);
    EXPECT_EQ(manager.load_latest({.map_location = at::kMeta})->contents["model"]["rows"].as_tensor().dim(),
              2);
    EXPECT_THAT(error_of([&] { manager.load(3, there); }), HasSubstr("no checkpoint of step 3"));
    expect_whole(distributed_checkpoint::load(folder / "last"), 5);
    expect_whole(distributed_checkpoint::load(folder / "best"), 2);
    context.group().barrier();
  }
});
TEST_P(ShardedManager, EveryRankWritesAndReadsItsParts) { run_here(saves_and_loads); }

const Scenario falls_back("damage is skipped on all ranks", [] {
  const auto context = init({.backend = backend_under_test()});
  CheckpointManager manager(folder_of_run(), by_every_rank(true));
  for (const std::int64_t step : {1, 2}) manager.save(step, contents_at(step, context));
  manager.wait();
  if (context.is_main_process()) damage(folder_of_run() / "step-00000002");
  context.group().barrier();
  auto there = place_for(context);
  EXPECT_EQ(manager.load_latest(there)->step, 1);
  EXPECT_TRUE(equal(there, contents_at(1, context)));
  expect_whole(manager.load_latest()->contents, 1);
  EXPECT_THAT(error_of([&] { manager.load(2, there); }), HasSubstr("step-00000002"));
  context.group().barrier();
  // Metadata with inverted bits.
  if (context.is_main_process()) {
    std::ofstream(folder_of_run() / "step-00000001" / ".metadata", std::ios::app) << "x";
    fs::resize_file(folder_of_run() / "step-00000001" / ".metadata", 200);
  }
  context.group().barrier();
  EXPECT_THAT(error_of([&] { manager.load_latest(there); }),
              HasSubstr("none of the 2 checkpoints can be loaded"));
});
TEST_P(ShardedManager, DamageIsSkippedOnAllRanks) { run_here(falls_back); }

const Scenario does_not_fit("a mismatch is an error, and no older checkpoint hides it", [] {
  const auto context = init({.backend = backend_under_test()});
  CheckpointManager manager(folder_of_run(), by_every_rank(false));
  manager.save(1, Dict{{"weight", torch::ones({2})}, {"more", 1}});
  manager.save(2, Dict{{"weight", torch::ones({3})}});
  Dict narrow{{"weight", torch::zeros({2})}};
  EXPECT_THAT(error_of([&] { manager.load_latest(narrow); }), HasSubstr("is of shape [3], but here of [2]"));
  Dict more{{"weight", torch::zeros({3})}, {"more", 0}};
  EXPECT_THAT(error_of([&] { manager.load_latest(more); }), HasSubstr("there is no entry 'more'"));
  context.group().barrier();
});
TEST_P(ShardedManager, AMismatchIsNotDamage) { run_here(does_not_fit); }

// Buffers of BatchNorm, meters, generators.
const Scenario takes_rank_0s("differing entries are saved from rank 0", [] {
  const auto context = init({.backend = backend_under_test()});
  CheckpointManager manager(folder_of_run(), by_every_rank(true));
  Dict contents{{"same", torch::ones({500})}};
  for (int i = 0; i < 5; ++i) contents.set(fmt::format("mean{}", i), torch::full({100}, context.rank()));
  for (int i = 0; i < 5; ++i) contents.set(fmt::format("count{}", i), context.rank());
  manager.save(1, contents);
  const auto loaded = manager.load_latest()->contents;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(loaded[fmt::format("mean{}", i)].as_tensor().eq(0).all().item<bool>());
    EXPECT_EQ(loaded[fmt::format("count{}", i)].as_int(), 0);
  }
  EXPECT_TRUE(loaded["same"].as_tensor().eq(1).all().item<bool>());
  context.group().barrier();
});
TEST_P(ShardedManager, DifferingEntriesAreSavedFromRank0) { run_here(takes_rank_0s); }

// The last rank's part takes longer than rank 0's exception.
const Scenario unwinds("an unrelated exception", [] {
  const auto context = init({.backend = backend_under_test()});
  Dict contents{{"step", 1}};
  if (context.rank() == context.world_size() - 1) contents.set("large", torch::ones({10'000'000}));
  try {
    CheckpointManager manager(folder_of_run(), by_every_rank(true));
    manager.save(1, contents);
    throw std::runtime_error("of the training");
  } catch (const std::runtime_error&) {
    context.group().barrier();
  }
  CheckpointManager manager(folder_of_run(), by_every_rank(true));
  EXPECT_EQ(steps_in(manager), Steps{1});
  EXPECT_TRUE(manager.load_latest());
  context.group().barrier();
});
TEST_P(ShardedManager, AnExceptionOnAnotherRankLosesNoSave) { run_here(unwinds); }

// A file that may not grow stands for a disk that is full, on the last rank only.
const Scenario fails_together("a full disk on one rank fails all ranks", [] {
  const auto context = init({.backend = backend_under_test()});
  const bool last = context.rank() == context.world_size() - 1;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit whole{};
  ::getrlimit(RLIMIT_FSIZE, &whole);
  const auto limit_last = [&](rlim_t bytes) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = whole.rlim_max};
    if (last) ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  for (const bool async : {false, true}) {
    const auto folder = folder_of_run() / (async ? "async" : "blocking");
    CheckpointManager manager(folder, by_every_rank(async));
    manager.save(1, contents_at(1, context));
    manager.wait();
    limit_last(100);
    const auto error = error_of([&] {
      manager.save(2, contents_at(2, context));
      manager.wait();
    });
    limit_last(whole.rlim_cur);
    EXPECT_THAT(error, HasSubstr("too large"));
    if (context.world_size() > 1) {
      EXPECT_THAT(error, HasSubstr(fmt::format("rank {}: ", context.world_size() - 1)));
    }
    context.group().barrier();
    EXPECT_EQ(steps_in(manager), Steps{1});
    EXPECT_EQ(unfinished_in(folder), 0);
    // Saving works afterwards, even if it replaces a checkpoint.
    manager.save(1, contents_at(7, context));
    manager.save(3, contents_at(3, context));
    manager.wait();
    expect_whole(manager.load(1).contents, 7);
    expect_whole(manager.load(3).contents, 3);
    context.group().barrier();
  }
});
TEST_P(ShardedManager, AFullDiskOnOneRankFailsAllRanks) { run_here(fails_together); }

const Scenario refuses("values that cannot be saved in parts", [] {
  const auto context = init({.backend = backend_under_test()});
  CheckpointManager manager(folder_of_run(), by_every_rank(false));
  EXPECT_THAT(error_of([&] { manager.save(1, context.is_main_process() ? Value(3) : Value(Dict())); }),
              HasSubstr("expected a dict"));
  manager.save(1, contents_at(1, context));
  EXPECT_THAT(error_of([&] { manager.load_latest({.mmap = true}); }), HasSubstr("without mmap"));
  context.group().barrier();
  CheckpointManager plain(folder_of_run(), {.sync = false});
  EXPECT_THAT(error_of([&] { plain.save(2, contents_at(2, context)); }),
              HasSubstr("CheckpointWriting::every_rank"));
  // One step, written first in parts and then in one file.
  plain.save(1, Dict{{"step", 1}});
  EXPECT_TRUE(equal(plain.load_latest()->contents, Dict{{"step", 1}}));
  auto there = place_for(context);
  EXPECT_THAT(error_of([&] { plain.load(1, there); }), HasSubstr("rank 0 wrote it as one file"));
  context.group().barrier();
  EXPECT_FALSE(fs::exists(folder_of_run() / "step-00000001"));
  EXPECT_FALSE(fs::is_symlink(folder_of_run() / "last"));
});
TEST_P(ShardedManager, RejectsUnsupportedValues) { run_here(refuses); }

const Scenario saves_one("save for another number of ranks", [] {
  const auto context = init({.backend = "gloo"});
  // No wait(): the end of the scope waits.
  CheckpointManager manager(folder_of_run(), by_every_rank(true));
  manager.save(9, contents_at(9, context));
});
const Scenario loads_one("load what another number of ranks saved", [] {
  const auto context = init({.backend = "gloo"});
  CheckpointManager manager(folder_of_run(), by_every_rank(false));
  auto there = place_for(context);
  ASSERT_TRUE(manager.load_latest(there));
  EXPECT_TRUE(equal(there, contents_at(9, context)));
});

TEST(ShardedManager, AnotherNumberOfRanksReadsItsOwnParts) {
  for (const int ranks : {1, 2, 4}) {
    const TempFolder temp;
    const std::map<std::string, std::string> env{{"FOLDER", temp.path().string()}};
    expect_all_passed(run_ranks(saves_one, {.world_size = ranks, .env = env}));
    expect_all_passed(run_ranks(loads_one, {.world_size = 3, .env = env}));
  }
}

}  // namespace
}  // namespace lockstep::testing::sharded_manager_test
