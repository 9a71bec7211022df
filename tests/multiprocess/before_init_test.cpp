// SPDX-License-Identifier: BSD-3-Clause
// Whatever shares work with other ranks, made or used in a rank of a launcher before init().
#include <functional>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::before_init_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Numbers {
  using BatchType = at::Tensor;
  at::Tensor get_batch(const at::Tensor& indices) const { return indices; }
  std::size_t size() const { return 4; }
};

struct NumberStream {
  struct Pass {
    std::int64_t number = 0;
    std::optional<at::Tensor> next() {
      return number == 4 ? std::nullopt : std::optional(torch::tensor(number++));
    }
  };
  std::unique_ptr<Pass> iter(const data::StreamShare&) const { return std::make_unique<Pass>(); }
};

struct ImplicitUse {
  std::string name;  // in the message
  std::function<void(const std::string& folder)> use;
};

torch::nn::Linear net() { return torch::nn::Linear(2, 2); }

std::vector<ImplicitUse> implicit_uses() {
  const auto one = [] { return torch::ones({1}); };
  const auto with_sgd = [](const auto& use) {
    auto linear = net();
    torch::optim::SGD sgd(linear->parameters(), 0.1);
    use(linear, sgd);
  };
  return {
      {"get_rank()", [](auto&) { get_rank(); }},
      {"get_world_size()", [](auto&) { get_world_size(); }},
      {"get_local_rank()", [](auto&) { get_local_rank(); }},
      {"is_main_process()", [](auto&) { is_main_process(); }},
      {"lockstep::default_group", [](auto&) { default_group(); }},
      {"barrier", [](auto&) { barrier(); }},
      {"lockstep::new_group", [](auto&) { new_group({0}); }},
      {"batch_isend_irecv",
       [=](auto&) {
         batch_isend_irecv({{isend, one(), 1}});
       }},
      {"DeviceMesh", [](auto&) { init_device_mesh({1}); }},
      {"DistributedSampler", [](auto&) { data::DistributedSampler(4); }},
      {"DistributedSampler", [](auto&) { data::DistributedSampler(4, {.num_replicas = 2}); }},
      {"DistributedSampler", [](auto&) { data::DistributedSampler(4, {.rank = 0}); }},
      {"DistributedSampler",
       [](auto&) {
         data::ShardSampler(std::vector<std::int64_t>{2, 2});
       }},
      {"DistributedEvalSampler", [](auto&) { data::DistributedEvalSampler(4); }},
      {"DataLoader", [](auto&) { data::DataLoader(Numbers(), {.batch_size = 2}); }},
      {"DataLoader", [](auto&) { data::DataLoader(NumberStream(), {.batch_size = 2}); }},
      {"DataLoader", [](auto&) { data::make_batch_source(4, {.batch_size = 2}); }},
      {"reduce_value()", [=](auto&) { reduce_value(one()); }},
      {"reduce_value()", [](auto&) { reduce_value(1.0); }},
      {"reduce_value()",
       [](auto&) {
         reduce_value(std::map<std::string, double>{{"a", 1}});
       }},
      {"reduce_value()", [](auto&) { metrics::Throughput().compute(); }},
      {"metric", [](auto&) { metrics::AverageMeter().compute(); }},
      {"metric", [](auto&) { metrics::Accuracy().compute(); }},
      {"metric", [](auto&) { metrics::Accuracy().state_dict(); }},
      {"metric Auroc", [](auto&) { metrics::Auroc().compute(); }},
      {"SyncBatchNorm",
       [](auto&) {
         SyncBatchNorm(2)->forward(torch::rand({4, 2}));
       }},
      {"SyncBatchNorm",
       [](auto&) {
         auto layers = convert_sync_batchnorm(torch::nn::Sequential(torch::nn::BatchNorm1d(2)));
         layers->forward(torch::rand({4, 2}));
       }},
      {"DistributedDataParallel", [](auto&) { DistributedDataParallel ddp(net()); }},
      {"broadcast_module()", [](auto&) { broadcast_module(*net(), 0); }},
      {"PeriodicModelAverager", [](auto&) { PeriodicModelAverager({.period = 2}); }},
      {"ZeroRedundancyOptimizer",
       [](auto&) {
         ZeroRedundancyOptimizer<torch::optim::SGD>(net()->parameters(), torch::optim::SGDOptions(0.1));
       }},
      {"fully_shard()", [](auto&) { fully_shard(*net()); }},
      {"memory_report()",
       [=](auto&) { with_sgd([](auto& linear, auto& sgd) { memory_report(*linear, sgd); }); }},
      {"nn::functional::all_reduce", [=](auto&) { nn::functional::all_reduce(one()); }},
      {"measure_layers()",
       [](auto&) {
         pipelining::measure_layers(torch::nn::Sequential(net()), torch::rand({1, 2}));
       }},
      {"Trainer",
       [=](auto&) {
         with_sgd([](auto& linear, auto& sgd) {
           Trainer trainer(linear, sgd, {.epochs = 1});
           std::vector batches{torch::rand({1, 2})};
           trainer.fit(batches, [&](auto& batch) { return linear->forward(batch).sum(); });
         });
       }},
      {"finite_or_stop()", [=](auto&) { finite_or_stop(one().sum(), net(), 1); }},
      {"Profiler", [](auto& folder) { Profiler profiler({.path = folder + "/trace.json"}); }},
      {"Logger",
       [](auto& folder) {
         csv_logger(folder + "/log.csv").log(1, {{"a", 1}});
       }},
      {"Logger",
       [](auto& folder) {
         csv_logger(folder + "/log.csv", {.every_rank = true}).log(1, {{"a", 1}});
       }},
      {"Logger",
       [](auto&) {
         console_logger().log(1, {{"a", 1}});
       }},
      {"ProgressBar", [](auto&) { ProgressBar bar({.total = 2}); }},
      {"CheckpointManager", [](auto& folder) { CheckpointManager manager(folder + "/runs"); }},
      {"TrainingState", [](auto&) { TrainingState state; }},
      {"load_on_all()", [](auto& folder) { load_on_all(folder + "/none.pt"); }},
      {"share_starting_weights()",
       [](auto& folder) { share_starting_weights(*net(), folder + "/start.pt"); }},
  };
}

void expect_refused(const std::string& folder, const std::string& numbers) {
  for (const auto& [name, use] : implicit_uses()) {
    EXPECT_THAT(error_of<ArgumentError>([&] { use(folder); }),
                AllOf(StartsWith(name + ": "), HasSubstr("is rank " + numbers + " ("),
                      HasSubstr("call lockstep::init() first")))
        << name;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

std::vector<std::int64_t> all_of(data::Sampler& sampler) {
  std::vector<std::int64_t> found(static_cast<std::size_t>(sampler.size() + 1));
  found.resize(static_cast<std::size_t>(sampler.iter()->read(found)));
  return found;
}

const Scenario before_init("before init()", [] {
  const TempFolder folder;
  const auto rank = *Env().get("RANK");
  expect_refused(folder.path(), rank + " of 2");
  // What names its ranks, or does not share, needs no run.
  data::DistributedSampler mine(4, {.num_replicas = 2, .rank = 1, .shuffle = false});
  EXPECT_THAT(all_of(mine), ElementsAre(1, 3));
  data::DataLoader whole(Numbers(), {.batch_size = 4, .distributed = false});
  for (auto& batch : whole) EXPECT_EQ(batch.numel(), 4);
  data::DataLoader given(Numbers(),
                         {.batch_size = 4, .sampler = std::make_shared<data::SequentialSampler>(4)});
  for (auto& batch : given) EXPECT_EQ(batch.numel(), 4);
  // Threads that were ranks are not this process.
  spawn_threads(2, [](Context&) { EXPECT_EQ(data::DistributedSampler(4).size(), 2); });
  EXPECT_THAT(error_of<ArgumentError>([] { data::DataLoader(Numbers(), {.batch_size = 2}); }),
              HasSubstr("call lockstep::init() first"));
  metrics::AverageMeter meter;
  meter.update(std::stod(rank), 1);
  SyncBatchNorm layer(2);
  ProgressBar silent({.total = 2, .disable = true});
  const auto logger = csv_logger(folder.file("log.csv"));
  {
    const auto context = init();
    EXPECT_EQ(get_world_size(), 2);
    EXPECT_EQ(data::DistributedSampler(4).size(), 2);
    EXPECT_EQ(meter.compute(), 0.5);
    layer->forward(torch::rand({4, 2}));
    logger.log(1, {{"a", 1}});
    EXPECT_EQ(std::filesystem::exists(folder.file("log.csv")), context.is_main_process());
  }
  // One process again, for example to evaluate.
  EXPECT_EQ(get_rank(), 0);
  EXPECT_EQ(data::DistributedSampler(4).size(), 4);
  EXPECT_EQ(metrics::AverageMeter().state_dict().size(), 1);
});
TEST(BeforeInit, ARankOfALauncherIsRefused) { expect_all_passed(run_ranks(before_init)); }

const Scenario as_launched("before init(), in another launcher's environment", [] {
  const TempFolder folder;
  expect_refused(folder.path(), *Env().get("TEST_NUMBERS"));
});
TEST(BeforeInit, RanksOfSlurmMpiAndKubernetesAreRefused) {
  const std::map<std::string, std::string> none{
      {"RANK", ""},       {"WORLD_SIZE", ""},       {"LOCAL_RANK", ""},
      {"GROUP_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}, {"MASTER_ADDR", ""},
      {"MASTER_PORT", ""}};
  const auto launched = [&](std::map<std::string, std::string> env) {
    env.insert(none.begin(), none.end());
    expect_all_passed(run_ranks(as_launched, {.world_size = 1, .env = env}));
  };
  launched({{"TEST_NUMBERS", "3 of 4"}, {"RANK", "3"}, {"WORLD_SIZE", "4"}});
  launched({{"TEST_NUMBERS", "1 of 7"}, {"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "7"}});
  launched(
      {{"TEST_NUMBERS", "5 of 7"}, {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "7"}, {"SLURM_STEP_ID", "0"}});
  launched({{"TEST_NUMBERS", "1 of 2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  launched({{"TEST_NUMBERS", "0 of 3"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "3"}});
}

const Scenario alone("before init(), as one process", [] {
  const TempFolder folder;
  for (const auto& [name, use] : implicit_uses()) {
    EXPECT_THAT(error_of<Error>([&] { use(folder.path()); }),
                ::testing::Not(HasSubstr("the environment says")))
        << name;
  }
});
TEST(BeforeInit, OneProcessIsNotRefused) {
  for (const auto* const rank : {"", "0"}) {
    const std::string size = *rank == '\0' ? "" : "1";
    expect_all_passed(run_ranks(alone, {.world_size = 1, .env = {{"RANK", rank}, {"WORLD_SIZE", size}}}));
  }
}

// A user's own launcher gives the numbers to init(), so nothing is known before.
const Scenario made_early("made before init(), used after it", [] {
  const TempFolder folder;
  const auto rank = std::stoi(*Env().get("OWN_RANK"));
  data::DistributedSampler sampler(4);
  data::DistributedEvalSampler eval_sampler(4);
  data::DataLoader loader(Numbers(), {.batch_size = 2});
  CheckpointManager manager(folder.path() / "runs");
  TrainingState state;
  Profiler profiler({.path = folder.path() / "trace.json"});
  const auto context =
      init({.init_method = "file://" + *Env().get("TEST_FILE"), .world_size = 2, .rank = rank});
  const std::map<std::string, std::function<void()>> uses{
      {"DistributedSampler", [&] { sampler.iter(); }},
      {"DistributedEvalSampler", [&] { eval_sampler.iter(); }},
      {"DataLoader", [&] { loader.begin(); }},
      {"CheckpointManager", [&] { manager.save(1, Dict{}); }},
      {"CheckpointManager", [&] { manager.load_latest(); }},
      {"Profiler", [&] { profiler.step(); }},
      {"TrainingState", [&] { state.state_dict(); }}};
  for (const auto& [name, use] : uses) {
    EXPECT_THAT(error_of<ArgumentError>(use),
                AllOf(StartsWith(name + ": "), HasSubstr("make it anew after this run's init()")));
  }
});
TEST(BeforeInit, WhatWasMadeAsOneProcessIsRefusedInARun) {
  const TempFolder folder;
  RunOptions options{.world_size = 2, .env = {{"TEST_FILE", folder.file("meeting")}}};
  for (const auto* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"})
    options.env[name] = "";
  for (int rank = 0; rank < 2; ++rank) options.rank_env[rank] = {{"OWN_RANK", std::to_string(rank)}};
  expect_all_passed(run_ranks(made_early, options));
}

}  // namespace
}  // namespace lockstep::testing::before_init_test
