// SPDX-License-Identifier: BSD-3-Clause
// stats() and trace() of an FSDPModule.
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/rendezvous/init.h>

#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::sharded_stats_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kStackedBytes = (6 * 6 + 6) * 4;

struct Stacked {
  explicit Stacked(bool shared, std::optional<DeviceMesh> mesh = std::nullopt) {
    const FullyShardOptions options{
        .mesh = std::move(mesh), .reshard_after_forward = true, .share_memory = shared};
    for (const auto& layer : *net)
      if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), options);
    sharded = fully_shard(*net, options);
  }
  void step(bool reduces = true) {
    sharded.set_requires_gradient_sync(reduces);
    net->forward(torch::ones({2, 6})).pow(2).mean().backward();
    if (reduces) sharded.zero_grad();
  }

  Sequential net{Linear(6, 6), torch::nn::Tanh(), Linear(6, 6), torch::nn::Tanh(), Linear(6, 6)};
  FSDPModule sharded;
};

// The number of calls of each kind since `number`.
std::map<CallKind, int> calls_after(const ProcessGroup& group, std::uint64_t number) {
  std::map<CallKind, int> calls;
  for (const auto& call : group.recent_calls())
    if (call.number > number) ++calls[call.kind];
  return calls;
}

const Scenario counted_traffic("fsdp stats", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    SCOPED_TRACE(shared);
    Stacked stacked(shared);
    EXPECT_EQ(stacked.sharded.stats().steps, 0);
    stacked.step(false);
    EXPECT_EQ(stacked.sharded.stats().steps, 0);
    for (int step = 0; step < 2; ++step) stacked.step();
    const auto before = context.group().recent_calls().back().number;
    stacked.step();
    // The counts below are all that the group carries: shared parameters are never gathered.
    EXPECT_THAT(calls_after(context.group(), before),
                UnorderedElementsAre(
                    Pair(CallKind::reduce_scatter_tensor, 3),
                    shared ? Pair(CallKind::barrier, 2) : Pair(CallKind::all_gather_into_tensor, 4)));
    const auto stats = stacked.sharded.stats();
    EXPECT_EQ(stats.steps, 3);
    EXPECT_GT(stats.last.forward, 0);
    EXPECT_GT(stats.mean.backward, 0);
    EXPECT_GE(stats.last.communication_hidden, 0);
    EXPECT_EQ(stats.barrier_wait_last > 0, shared);
    EXPECT_GE(stats.barrier_wait_total, stats.barrier_wait_last);
    ASSERT_EQ(stats.groups.size(), 3);
    EXPECT_THAT(stats.groups[1].parameters, ElementsAre("2.weight", "2.bias"));
    // Backward needs no values of the first layer, and forward leaves the last one gathered.
    const std::array<std::int64_t, 3> gathers{1, 2, 1};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& [names, last, total] = stats.groups[i];
      EXPECT_EQ(last.gathers, shared ? 0 : gathers[i]) << i;
      EXPECT_EQ(last.gathered_bytes, last.gathers * kStackedBytes) << i;
      EXPECT_EQ(last.gather_wait > 0, !shared) << i;
      EXPECT_EQ(last.reductions, 1) << i;
      EXPECT_EQ(last.reduced_bytes, kStackedBytes) << i;
      EXPECT_GT(last.reduction_wait, 0) << i;
      EXPECT_EQ(total.gathers, 4 * last.gathers) << i;
      EXPECT_EQ(total.reductions, 3) << i;
      EXPECT_GE(total.reduction_wait, last.reduction_wait) << i;
    }
  }
});
TEST(ShardedStats, CountGathersAndReductionsOfEachGroup) { expect_all_passed(run_ranks(counted_traffic)); }

std::string trace_file(bool shared) {
  return std::getenv("TRACE_FOLDER") + std::string(shared ? "/shared.json" : "/gathered.json");
}

const Scenario traced("fsdp trace", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    Stacked stacked(shared);
    stacked.step();
    const auto file = trace_file(shared);
    trace(stacked.sharded, file, 2);
    EXPECT_THAT(error_of<ArgumentError>([&] { trace(stacked.sharded, file); }),
                HasSubstr("not been written yet"));
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(std::ifstream(file).good(), step > 2) << step;
      stacked.step();
      context.barrier();
    }
    EXPECT_THAT(error_of<ArgumentError>([&] { trace(stacked.sharded, ""); }), HasSubstr("name is empty"));
    trace(stacked.sharded, file + "/no/such/trace.json", 1);
    stacked.step();
    EXPECT_THAT(error_of([&] { stacked.step(); }), HasSubstr("cannot write"));
  }
  EXPECT_THAT(error_of<ArgumentError>([&] { trace(FSDPModule(), "a"); }), HasSubstr("no parameter"));
});

// The number of slices of each name.
std::map<std::string, int> slices_of(const std::string& file, int rank) {
  std::ifstream stream(file);
  std::map<std::string, int> counts;
  const auto trace = nlohmann::json::parse(stream);
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("pid") == rank) ++counts[event.at("name")];
  return counts;
}

TEST(ShardedTrace, ShowsGathersReductionsAndWaitsOfAllRanks) {
  const TempFolder folder;
  expect_all_passed(run_ranks(traced, {.env = {{"TRACE_FOLDER", folder.path().string()}}}));
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank);
    auto gathered = slices_of(folder.file("gathered.json"), rank);
    EXPECT_EQ(gathered["forward"], 2);
    EXPECT_EQ(gathered["backward"], 2);
    EXPECT_EQ(gathered["waiting for reductions"], 2);
    EXPECT_EQ(gathered["gather 2.weight"], 4);
    EXPECT_EQ(gathered["waiting for gather 2.weight"], 4);
    EXPECT_EQ(gathered["reduce 4.weight"], 2);
    EXPECT_EQ(gathered["waiting for all ranks"], 0);
    auto shared = slices_of(folder.file("shared.json"), rank);
    EXPECT_EQ(shared["gather 2.weight"], 0);
    EXPECT_EQ(shared["reduce 2.weight"], 2);
    EXPECT_EQ(shared["waiting for all ranks"], 4);
  }
}

const Scenario traced_replicas("fsdp trace of replicas", [] {
  const auto context = init({.backend = "shm"});
  Stacked stacked(false, init_device_mesh({2, 2}));
  trace(stacked.sharded, trace_file(false), 1);
  for (int step = 0; step < 2; ++step) stacked.step();
  trace(stacked.sharded, trace_file(true), 1);
});
TEST(ShardedTrace, ShowsTheFirstReplica) {
  const TempFolder folder;
  expect_all_passed(
      run_ranks(traced_replicas, {.world_size = 4, .env = {{"TRACE_FOLDER", folder.path().string()}}}));
  std::ifstream stream(folder.file("gathered.json"));
  std::map<int, int> reductions;  // of each rank
  const auto trace = nlohmann::json::parse(stream);
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("name") == "reduce 0.weight") ++reductions[event.at("pid")];
  EXPECT_THAT(reductions, ElementsAre(Pair(0, 1), Pair(1, 1)));
}

}  // namespace
}  // namespace lockstep::testing::sharded_stats_test
