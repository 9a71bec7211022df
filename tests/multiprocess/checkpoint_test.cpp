// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints that several ranks write and read together.
#include <bit>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "multiprocess/backends.h"
#include "parity/resume_training.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

class Checkpoints : public testing::EveryBackend {
 protected:
  void run_here(const testing::Scenario& scenario, std::map<std::string, std::string> env = {}) {
    env["FOLDER"] = temp_.path().string();
    run(scenario, std::move(env));
  }

  // Bitwise equal, except that Gloo's order of summing three numbers depends on positions in a bucket, which
  // the first backward of a DDP determines again.
  static void expect_same_run(const Value& resumed, const Value& whole) {
    const auto& [backend, ranks] = GetParam();
    if (backend != "gloo" || std::has_single_bit(static_cast<unsigned>(ranks))) {
      EXPECT_TRUE(equal(resumed, whole));
      return;
    }
    for (const auto* part : {"scheduler", "loader", "epoch", "step", "generator"}) {
      EXPECT_TRUE(equal(resumed[part], whole[part])) << part;
    }
    for (const auto& [name, tensor] : whole["model"].as_dict()) {
      EXPECT_TRUE(torch::allclose(resumed["model"][name].as_tensor(), tensor.as_tensor(), 1e-4, 1e-5))
          << name.as_string();
    }
  }
  testing::TempFolder temp_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, Checkpoints, testing::backends_and_ranks({1, 2, 3}), testing::name_of_case);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Value contents(int rank) {
  const auto base = torch::arange(1000) + rank;
  return Dict{{"rank", rank},
              {"base", base},
              {"view", base.view({10, 100})},
              {"empty", torch::empty({0})},
              {"epoch", 3}};
}

const testing::Scenario saves_and_loads("rank 0 writes and all ranks load", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const fs::path folder = variable("FOLDER");
  for (const auto reading : {CheckpointReading::broadcast, CheckpointReading::every_rank}) {
    CheckpointManager manager(folder,
                              {.async_save = reading == CheckpointReading::every_rank, .reading = reading});
    manager.save(5, contents(context.rank()), 0.25);
    const auto loaded = manager.load_latest();
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->info.step, 5);
    EXPECT_EQ(loaded->info.metric, 0.25);
    EXPECT_TRUE(equal(loaded->contents, contents(0)));
    EXPECT_TRUE(loaded->contents["view"].as_tensor().is_alias_of(loaded->contents["base"].as_tensor()));
    EXPECT_TRUE(equal(load_on_all(loaded->info.file, {}, reading), contents(0)));
    context.group().barrier();
  }
});
TEST_P(Checkpoints, AreWrittenByOneAndReadByAll) { run_here(saves_and_loads); }

const testing::Scenario fails_together("a failure on one rank fails all ranks", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const fs::path folder = variable("FOLDER");
  if (context.is_main_process()) fs::create_directories(folder);
  if (context.is_main_process()) std::ofstream(folder / "file") << "x";
  context.group().barrier();
  EXPECT_THAT(error_of([&] { CheckpointManager(folder / "file"); }), HasSubstr("file"));

  CheckpointManager manager(folder / "runs", {.async_save = true});
  manager.save(1, contents(0));
  manager.wait();
  context.group().barrier();
  if (context.is_main_process()) fs::remove_all(folder / "runs");
  context.group().barrier();
  EXPECT_THAT(error_of([&] { manager.save(2, contents(0)); }),
              HasSubstr("the checkpoint folder and its checkpoints have disappeared"));
  context.group().barrier();
  if (context.is_main_process()) std::ofstream(folder / "runs") << "x";
  context.group().barrier();
  EXPECT_THAT(error_of([&] { manager.save(2, contents(0)); }), HasSubstr("runs"));
  EXPECT_THAT(error_of([&] { load_on_all(folder / "nothing.pt"); }), HasSubstr("nothing.pt"));
  EXPECT_THAT(error_of([&] { load_on_all(folder / "nothing.pt", {}, CheckpointReading::every_rank); }),
              HasSubstr(context.world_size() > 1 ? "rank 0: " : "nothing.pt"));
  // An entry that only some ranks have.
  if (context.is_main_process()) save(contents(0), folder / "of-rank-0.pt");
  const auto file = folder / fmt::format("of-rank-{}.pt", context.rank());
  const auto error = error_of([&] { load_on_all(file, {}, CheckpointReading::every_rank); });
  EXPECT_THAT(error, HasSubstr(context.world_size() > 1 ? "rank 1: " : ""));
});
TEST_P(Checkpoints, FailTogether) { run_here(fails_together); }

const testing::Scenario wrapped_and_bare("a DDP and the bare module are compatible", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  torch::manual_seed(1);
  testing::ResumeNet inner;
  DistributedDataParallel ddp(inner);
  const auto wrapped = state_dict(ddp);
  EXPECT_TRUE(wrapped.contains("module.first.weight"));
  torch::manual_seed(static_cast<std::uint64_t>(2 + context.rank()));
  testing::ResumeNet bare;
  EXPECT_EQ(load_state_dict(bare, wrapped).prefix, PrefixChange::removed);
  EXPECT_TRUE(equal(state_dict(bare), state_dict(inner)));
  torch::manual_seed(9);
  const testing::ResumeNet other;
  EXPECT_EQ(load_state_dict(ddp, state_dict(other)).prefix, PrefixChange::added);
  EXPECT_TRUE(equal(state_dict(inner), state_dict(other)));
  EXPECT_EQ(load_state_dict(ddp, wrapped).prefix, PrefixChange::none);
});
TEST_P(Checkpoints, DistributedModuleLoadsIntoBareModule) { run_here(wrapped_and_bare); }

const testing::Scenario trains_on("train with checkpoints", [] {
  torch::set_num_threads(1);
  const auto context = init({.backend = testing::backend_under_test()});
  testing::ResumeTraining training(variable("FROM").empty() ? 1 : 99);
  CheckpointManager manager(variable("FOLDER"), {.keep_last = 0});
  if (!variable("FROM").empty()) {
    training.state().load_state_dict(manager.load(std::stoll(variable("FROM"))).contents.as_dict());
  }
  const auto until = std::stoll(variable("UNTIL"));
  training.train(until);
  manager.save(until, training.state().state_dict());
});

TEST_P(Checkpoints, HundredStepsEqualFiftyPlusFifty) {
  const auto whole = temp_.path() / "whole";
  const auto parts = temp_.path() / "parts";
  run(trains_on, {{"FOLDER", whole.string()}, {"FROM", ""}, {"UNTIL", "100"}});
  run(trains_on, {{"FOLDER", parts.string()}, {"FROM", ""}, {"UNTIL", "50"}});
  run(trains_on, {{"FOLDER", parts.string()}, {"FROM", "50"}, {"UNTIL", "100"}});
  expect_same_run(load(parts / "step-00000100.pt"), load(whole / "step-00000100.pt"));
}

// Stops between two batches whose gradients are added up.
const testing::Scenario stops_between("train between the steps of the optimizer", [] {
  torch::set_num_threads(1);
  const auto context = init({.backend = testing::backend_under_test()});
  const bool local = variable("LOCAL") == "yes";
  testing::ResumeTraining training(variable("FROM").empty() ? 1 : 99, true, local);
  CheckpointManager manager(variable("FOLDER"), {.keep_last = 0, .sync = false});
  if (!variable("FROM").empty()) {
    training.state().load_state_dict(manager.load(std::stoll(variable("FROM"))).contents.as_dict());
  }
  const auto until = std::stoll(variable("UNTIL"));
  training.train_batches(until);
  const auto state = training.state().state_dict();
  EXPECT_EQ(state.at("gradients").as_dict().contains("all"), !local || context.world_size() == 1);
  manager.save(until, state);
});

TEST_P(Checkpoints, ResumeAccumulatedGradients) {
  // If the number of ranks is not a power of two, the last bit may differ. Loaded averaged gradients are
  // separate tensors, which DDP averages by the reciprocal as in PyTorch; gradients in its buckets it
  // divides. Gloo's order of summing depends on positions in a bucket, which the first backward of a DDP
  // determines again.
  const auto& [backend, ranks] = GetParam();
  const bool exact = std::has_single_bit(static_cast<unsigned>(ranks));
  for (const std::string local : {"no", "yes"}) {
    if (!exact && (local == "no" || backend == "gloo")) continue;
    const testing::TempFolder temp;
    const auto go = [&](const char* folder, const char* from, const char* until) {
      run(stops_between,
          {{"FOLDER", (temp.path() / folder).string()}, {"LOCAL", local}, {"FROM", from}, {"UNTIL", until}});
    };
    go("whole", "", "101");
    go("parts", "", "51");
    go("parts", "51", "101");
    EXPECT_TRUE(
        equal(load(temp.path() / "parts/step-00000101.pt"), load(temp.path() / "whole/step-00000101.pt")))
        << local;
  }
}

TEST(AnotherNumberOfRanks, RejectsGradientsAccumulatedPerRank) {
  const testing::TempFolder temp;
  const auto go = [&](int ranks, const char* from, const char* until) {
    return testing::run_ranks(
        stops_between,
        {.world_size = ranks,
         .env = {{"FOLDER", temp.path().string()}, {"LOCAL", "yes"}, {"FROM", from}, {"UNTIL", until}}});
  };
  testing::expect_all_passed(go(2, "", "5"));
  for (const auto& result : go(3, "5", "7")) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("gradients that 2 ranks accumulated cannot be loaded by 3"));
  }
}

// The same with every rank writing its share.
const testing::Scenario trains_on_together("train with checkpoints of every rank", [] {
  torch::set_num_threads(1);
  const auto context = init({.backend = testing::backend_under_test()});
  testing::ResumeTraining training(variable("FROM").empty() ? 1 : 99);
  CheckpointManager manager(
      variable("FOLDER"),
      {.keep_last = 0, .async_save = true, .sync = false, .writing = CheckpointWriting::every_rank});
  if (!variable("FROM").empty()) {
    training.state().load_state_dict(manager.load(std::stoll(variable("FROM"))).contents.as_dict());
  }
  const auto until = std::stoll(variable("UNTIL"));
  training.train(until);
  manager.save(until, training.state().state_dict());
});

TEST_P(Checkpoints, HundredStepsEqualFiftyPlusFiftyIfEveryRankWrites) {
  const auto whole = temp_.path() / "whole";
  const auto parts = temp_.path() / "parts";
  run(trains_on_together, {{"FOLDER", whole.string()}, {"FROM", ""}, {"UNTIL", "100"}});
  run(trains_on_together, {{"FOLDER", parts.string()}, {"FROM", ""}, {"UNTIL", "50"}});
  run(trains_on_together, {{"FOLDER", parts.string()}, {"FROM", "50"}, {"UNTIL", "100"}});
  expect_same_run(distributed_checkpoint::load(parts / "step-00000100"),
                  distributed_checkpoint::load(whole / "step-00000100"));
}

// Which samples a rank is given: `BATCHES` batches, or with 0 all that are left of the epoch.
const testing::Scenario hands_out("hand out samples", [] {
  const auto context = init({.backend = "gloo"});
  const auto samples = torch::arange(203);
  data::DataLoader loader(data::TensorDataset(samples, samples),
                          {.batch_size = 4, .shuffle = true, .seed = 3});
  TrainingState training;
  training.add("loader", loader);
  const fs::path folder = variable("FOLDER");
  CheckpointManager manager(folder);
  const auto latest = manager.load_latest();
  if (latest) training.load_state_dict(latest->contents.as_dict());
  loader.set_epoch(1);
  std::ofstream seen(folder / fmt::format("seen-{}-{}", context.world_size(), context.rank()));
  std::int64_t left = std::stoll(variable("BATCHES"));
  for (auto& [inputs, target] : loader) {
    for (const auto& index : inputs.unbind()) seen << index.item<std::int64_t>() << "\n";
    if (--left == 0) break;
  }
  manager.save(latest ? 2 : 1, training.state_dict());
  if (latest) {
    EXPECT_EQ(loader.position().batches, 0) << "the epoch is over";
  }
});

TEST(AnotherNumberOfRanks, SeesEverySampleOfTheEpochOnce) {
  const testing::TempFolder temp;
  const auto run_on = [&](int ranks, int batches) {
    testing::expect_all_passed(testing::run_ranks(
        hands_out, {.world_size = ranks,
                    .env = {{"FOLDER", temp.path().string()}, {"BATCHES", std::to_string(batches)}}}));
  };
  run_on(2, 10);
  run_on(3, 0);
  std::multiset<int> seen;
  for (const auto& entry : fs::directory_iterator(temp.path())) {
    if (!entry.path().filename().string().starts_with("seen-")) continue;
    std::ifstream file(entry.path());
    for (int index = 0; file >> index;) seen.insert(index);
  }
  // 80 and then 3 times 41: no sample is repeated as padding.
  EXPECT_EQ(seen.size(), 203U);
  EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 203U);
}

}  // namespace
}  // namespace lockstep
