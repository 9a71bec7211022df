// SPDX-License-Identifier: BSD-3-Clause
// `lockstep plan`: the terms of its estimates, its files, and its output.
#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "lockstep_plan/meshes.h"
#include "support/error_of.h"
#include "tools/tool_program.h"

namespace lockstep::testing {
namespace {

using namespace plan;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Eight equal layers of one second for a sample, which tensor parallelism can cut.
std::vector<Layer> equal_layers() {
  return std::vector(8, Layer{.name = "layer",
                              .parameters = 1000,
                              .flops = 100,
                              .activations = 80,
                              .output = 10,
                              .all_reduces = 2});
}

Machine machine_of(int ranks_per_host) {
  return {.ranks_per_host = ranks_per_host,
          .flops = 100,
          .memory = 1'000'000,
          .host = {.latency = 0, .seconds_per_byte = 1e-3},
          .network = Link{.latency = 0, .seconds_per_byte = 1e-2}};
}

Choice find(const std::vector<Choice>& all, int dp, int pp, int tp, ShardingForm form = ShardingForm::ddp,
            int ep = 1, int cp = 1) {
  for (const auto& each : all)
    if (each.dp == dp && each.pp == pp && each.tp == tp && each.form == form && each.ep == ep &&
        each.cp == cp)
      return each;
  ADD_FAILURE() << fmt::format("no mesh {} x {} x {} x {} x {}", dp, pp, ep, cp, tp);
  return {};
}

TEST(PlanMeshes, AddsUpComputeIdleTimeAndCommunication) {
  const auto all = plan_meshes(equal_layers(), machine_of(4),
                               {.ranks = 4, .batch_size = 16, .microbatches = 4, .heads = 4});
  // 16 samples of 8 layers, forward 1 s and backward 2 s, on 4 ranks.
  for (const auto& each : all) EXPECT_DOUBLE_EQ(each.compute, 96) << each.pp;

  const auto data = find(all, 4, 1, 1);
  EXPECT_DOUBLE_EQ(data.data, 2 * 3 / 4.0 * 8 * 1000 * 4 * 1e-3);
  EXPECT_DOUBLE_EQ(data.step, data.compute + data.data);
  EXPECT_DOUBLE_EQ(find(all, 4, 1, 1, ShardingForm::gathered).data, 1.5 * data.data);
  EXPECT_DOUBLE_EQ(find(all, 4, 1, 1, ShardingForm::shared).data, 0.5 * data.data);

  const auto tensor = find(all, 1, 1, 4);
  EXPECT_DOUBLE_EQ(tensor.tensor, 8 * 2 * 2 * 16 * (2 * 3 / 4.0 * 10 * 1e-3));
  EXPECT_DOUBLE_EQ(tensor.step, tensor.compute + tensor.tensor);

  // 1F1B of 4 stages and 4 micro-batches is idle for 3 / 7, and its messages take longer.
  const auto pipeline = find(all, 1, 4, 1);
  EXPECT_GT(pipeline.pipeline, 96 * 3 / 4.0);
  EXPECT_LT(pipeline.pipeline, 96 * 3 / 4.0 + 1);
}

TEST(PlanMeshes, PassesKeysAroundAndSendsTokensToExperts) {
  auto layers = equal_layers();
  for (auto& each : layers) {
    each.keys = 20;
    each.experts = 4;
    each.expert_parameters = 800;
    each.dispatched = 12;
  }
  Job job{.ranks = 4, .batch_size = 16, .microbatches = 4, .heads = 4, .positions = 16};
  const auto all = plan_meshes(layers, machine_of(4), job);
  for (const auto& each : all) EXPECT_DOUBLE_EQ(each.compute, 96) << each.cp << " " << each.ep;

  // Each micro-batch has 4 samples, a quarter of each on a rank: 3 passes in forward, 7 in backward.
  const auto context = find(all, 1, 1, 1, ShardingForm::ddp, 1, 4);
  EXPECT_DOUBLE_EQ(context.context, 4 * 8 * (3 + 7) * (1 * 20 * 1e-3));
  EXPECT_DOUBLE_EQ(context.step, context.compute + context.context + context.data);
  EXPECT_DOUBLE_EQ(context.data, find(all, 4, 1, 1).data);
  EXPECT_EQ(context.rank.total(), 16 * 8 * 1000 + 8 * 80);

  // A sample of each micro-batch: tokens and results in forward and backward, and three quarters of them
  // move.
  const auto experts = find(all, 1, 1, 1, ShardingForm::ddp, 4, 1);
  EXPECT_DOUBLE_EQ(experts.expert, 4 * 8 * 4 * (3 / 4.0 * 12 * 1e-3));
  EXPECT_DOUBLE_EQ(experts.step, experts.compute + experts.expert + experts.data);
  EXPECT_DOUBLE_EQ(experts.data, 2 * 3 / 4.0 * 8 * 200 * 4 * 1e-3);
  EXPECT_EQ(experts.rank.total(), 16 * 8 * (200 + 800 / 4) + 8 * 80);
  // Two ranks have the same experts.
  EXPECT_DOUBLE_EQ(find(all, 2, 1, 1, ShardingForm::ddp, 2, 1).data,
                   experts.data + 2 * 1 / 2.0 * 8 * 400 * 4 * 1e-3);

  job.positions = 12;
  for (const auto& each : plan_meshes(layers, machine_of(4), job)) EXPECT_LE(each.cp, 2);
  layers.front().experts = 3;
  for (const auto& each : plan_meshes(layers, machine_of(4), job)) EXPECT_EQ(each.ep, 1);
}

TEST(PlanMeshes, CountsTheMemoryOfTheLargestStage) {
  auto layers = equal_layers();
  layers.front().parameters = 5000;
  const auto all =
      plan_meshes(layers, machine_of(4), {.ranks = 4, .batch_size = 16, .microbatches = 4, .heads = 4});
  EXPECT_EQ(find(all, 4, 1, 1).rank.total(), 16 * 12000 + 8 * 80);
  EXPECT_EQ(find(all, 1, 1, 4).rank.total(), 16 * 3000 + 4 * 8 * 50);  // of 80 the norms have 40
  // The first stage has 4 micro-batches in flight.
  EXPECT_EQ(find(all, 1, 4, 1).rank.total(), 16 * 6000 + 4 * 4 * 2 * 80);
  EXPECT_EQ(find(all, 4, 1, 1).host, 4 * find(all, 4, 1, 1).rank.total());

  auto small = machine_of(4);
  small.memory = 4 * 16 * 3000 + 4 * 4 * 8 * 50;
  const auto sorted =
      plan_meshes(layers, small, {.ranks = 4, .batch_size = 16, .microbatches = 4, .heads = 4});
  EXPECT_TRUE(sorted.front().fits);
  EXPECT_FALSE(find(sorted, 4, 1, 1).fits);
}

TEST(PlanMeshes, SharesTheNetworkOfAHost) {
  const auto all = plan_meshes(equal_layers(), machine_of(2),
                               {.ranks = 4, .batch_size = 16, .microbatches = 4, .heads = 4});
  const auto bytes = 8 * 1000 * 4.0;
  // Two ranks of a host reduce first, and one all-reduce crosses the network.
  EXPECT_DOUBLE_EQ(find(all, 4, 1, 1).data, bytes * 1e-3 + bytes * 1e-2);
  // Replicas on other hosts: both ranks of a host use its network, each with half of the parameters.
  EXPECT_DOUBLE_EQ(find(all, 2, 1, 2).data, 2 * bytes / 2 * 1e-2);
  auto alone = machine_of(2);
  alone.network.reset();
  auto layers = equal_layers();
  for (auto& each : layers) each.keys = 20;
  const auto parts =
      plan_meshes(layers, machine_of(2), {.ranks = 4, .batch_size = 4, .microbatches = 1, .positions = 8});
  // The ring crosses the network, which has one of its messages at a time.
  EXPECT_DOUBLE_EQ(find(parts, 1, 1, 1, ShardingForm::ddp, 1, 4).context, 8 * (3 + 7) * (20 * 1e-2));
  EXPECT_THAT(
      error_of<ArgumentError>([&] { plan_meshes(equal_layers(), alone, {.ranks = 4, .batch_size = 4}); }),
      HasSubstr("\"network\""));
}

TEST(PlanMeshes, LeavesOutWhatDoesNotDivide) {
  const auto all = plan_meshes(equal_layers(), machine_of(12), {.ranks = 12, .batch_size = 8, .heads = 4});
  for (const auto& each : all) {
    EXPECT_EQ(8 % each.dp, 0);
    EXPECT_EQ(4 % each.tp, 0);
    EXPECT_LE(each.pp, 8);
  }
  // Two ranks take an even number of micro-batches.
  for (const auto& each : plan_meshes(equal_layers(), machine_of(2),
                                      {.ranks = 2, .batch_size = 10, .schedule = "InterleavedZeroBubble"}))
    EXPECT_TRUE(each.pp == 1 || each.microbatches % 2 == 0);
  EXPECT_THAT(error_of<ArgumentError>([&] { plan_meshes(equal_layers(), machine_of(11), {.ranks = 11}); }),
              AllOf(HasSubstr("11 ranks"), HasSubstr("8 layers")));
  EXPECT_THAT(error_of<ArgumentError>(
                  [&] { plan_meshes(equal_layers(), machine_of(4), {.ranks = 6, .batch_size = 6}); }),
              AllOf(HasSubstr("6 ranks do not fill hosts of 4 ranks"), HasSubstr("--hosts")));
  plan_meshes(equal_layers(), machine_of(4), {.ranks = 3, .batch_size = 6});  // a part of one host
}

TEST(PlanMeshes, TakesFewerMicrobatchesThanStagesWhereTheScheduleDoes) {
  const auto plan = [](const char* schedule, int microbatches) {
    return plan_meshes(
        equal_layers(), machine_of(4),
        {.ranks = 4, .batch_size = 16, .microbatches = microbatches, .heads = 4, .schedule = schedule});
  };
  // Stages of 2 layers, and 8 samples a micro-batch: 5 slots, of which a stage works in 2.
  const auto choice = find(plan("GPipe", 2), 1, 4, 1);
  EXPECT_GT(choice.pipeline, choice.compute * 3 / 2);
  EXPECT_LT(choice.pipeline, choice.compute * 3 / 2 + 1);
  for (const int microbatches : {1, 2, 4, 8, 16})
    EXPECT_GT(find(plan("InterleavedZeroBubble", microbatches), 1, 4, 1).step, 96);
  for (const auto& each : plan("1F1B", 2)) EXPECT_LE(each.pp, 2);
}

TEST(PlanMeshes, ShardsOverGroupsThatLieUnevenlyOnHosts) {
  auto layers = equal_layers();
  for (auto& each : layers) each.keys = 20;
  // The ranks of "cp" are 0, 2, 4 and 6, 8, 10 on hosts of four.
  const auto all =
      plan_meshes(layers, machine_of(4), {.ranks = 12, .batch_size = 4, .heads = 2, .positions = 12});
  const auto find_form = [&](ShardingForm form) {
    return std::ranges::count_if(all, [&](const Choice& each) {
      return each.pp == 2 && each.cp == 3 && each.tp == 2 && each.form == form;
    });
  };
  EXPECT_EQ(find_form(ShardingForm::shared), 0);
  EXPECT_EQ(find(all, 1, 2, 2, ShardingForm::gathered, 1, 3).rank.parameters, 4 * 4 * 500 / 3);
}

class LockstepPlan : public ToolProgram {
 protected:
  LockstepPlan() : ToolProgram("plan") { write_machine(machine_of(4), path("machine.json")); }
};

TEST_F(LockstepPlan, ReadsTheTableThatItWrites) {
  expect_success({"--gpt", "2,64,100,16", "--write-model", file("model.csv")});
  const auto layers = read_layers(path("model.csv"));
  ASSERT_EQ(layers.size(), 4U);
  std::int64_t parameters = 0;
  for (const auto& each : layers) parameters += each.parameters;
  EXPECT_EQ(parameters, (100 + 16) * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64 + 100 * 64);
  const Words job{"--machine", file("machine.json"), "--ranks", "4", "--batch-size", "8", "--heads", "2",
                  "--json"};
  Words by_table = job, by_sizes = job;
  by_table.insert(by_table.end(), {"--model", file("model.csv"), "--positions", "16"});
  by_sizes.insert(by_sizes.end(), {"--gpt", "2,64,100,16"});
  const auto out = expect_success(by_table);
  EXPECT_EQ(out, expect_success(by_sizes));
  const auto choices = nlohmann::json::parse(out);
  EXPECT_EQ(choices.at(0).at("dp").get<int>() * choices.at(0).at("pp").get<int>() *
                choices.at(0).at("tp").get<int>(),
            4);
}

TEST_F(LockstepPlan, PlansContextAndExpertParallelRanks) {
  const Words job{
      "--machine", file("machine.json"), "--ranks",   "4", "--batch-size", "8", "--json", "--top", "100",
      "--gpt",     "2,64,100,16",        "--experts", "4"};
  Words table = job;
  table.insert(table.end(), {"--write-model", file("model.csv")});
  expect_success(table);
  const auto layers = read_layers(path("model.csv"));
  ASSERT_EQ(layers.size(), 6U);
  EXPECT_EQ(layers[2].experts, 4);
  EXPECT_EQ(layers[2].expert_parameters, 4 * (8 * 64 * 64 + 5 * 64));
  EXPECT_EQ(layers[2].dispatched, 2 * 16 * 64 * 4);
  int context = 0, experts = 0;
  for (const auto& each : nlohmann::json::parse(expect_success(job))) {
    context += each.at("cp").get<int>() > 1 ? 1 : 0;
    experts += each.at("ep").get<int>() > 1 ? 1 : 0;
  }
  EXPECT_GT(context, 0);
  EXPECT_GT(experts, 0);
  EXPECT_THAT(
      expect_failure(
          {"--gpt", "2,64,100,16", "--experts", "2", "--top-k", "3", "--machine", file("machine.json")}, 2),
      HasSubstr("--top-k 3 of 2 experts"));
}

TEST_F(LockstepPlan, MeasuresAMachineAndPrintsATable) {
  const auto out = run({"--measure", file("own.json"), "--nproc", "2", "--gpt", "2,64,100,16", "--ranks", "2",
                        "--batch-size", "8", "--heads", "2"})
                       .out;
  EXPECT_THAT(out, AllOf(HasSubstr("data parallel"), HasSubstr("fully_shard"), HasSubstr("a host has ")));
  const auto machine = read_machine(path("own.json"));
  EXPECT_EQ(machine.ranks_per_host, 2);
  EXPECT_GT(machine.flops, 0);
}

TEST_F(LockstepPlan, NamesWhatIsWrong) {
  std::ofstream(path("model.csv"))
      << "name,parameters,flops,activations,output,all_reduces\na,1,2,3,4,5\nb,x,2,3,4,5\n";
  EXPECT_THAT(expect_failure({"--model", file("model.csv"), "--machine", file("machine.json")}, 2),
              AllOf(HasSubstr("model.csv:3"), HasSubstr("\"x\"")));
  EXPECT_THAT(expect_failure({"--gpt", "2,64,100,16"}, 2), HasSubstr("--machine"));
  EXPECT_THAT(expect_failure({"--machine", file("machine.json")}, 2), HasSubstr("--gpt"));
  EXPECT_THAT(expect_failure({"--gpt", "2,64,100,16", "--machine", file("model.csv")}, 2),
              HasSubstr("--measure"));
  const auto failure_of = [&](const Words& more) {
    Words flags{"--gpt",   "2,64,100,16", "--machine",    file("machine.json"),
                "--ranks", "4",           "--batch-size", "8"};
    flags.insert(flags.end(), more.begin(), more.end());
    return expect_failure(flags, 2);
  };
  EXPECT_THAT(expect_failure({"--gpt", "2,64,100,16", "--machine", file("machine.json"), "--ranks", "6"}, 2),
              HasSubstr("6 ranks do not fill hosts of 4 ranks"));
  EXPECT_THAT(failure_of({"--hosts", "3"}), HasSubstr("--hosts 3 do not divide --ranks 4"));
  EXPECT_THAT(failure_of({"--heads", "5"}), HasSubstr("--heads 5 do not divide a width of 64"));
  EXPECT_THAT(failure_of({"--heads", "0"}), HasSubstr("the number of heads is 0"));
  EXPECT_THAT(failure_of({"--microbatches", "3"}), HasSubstr("8 samples in 3 micro-batches"));
  EXPECT_THAT(failure_of({"--positions", "32"}), HasSubstr("--gpt excludes --positions"));
  EXPECT_THAT(failure_of({"--measure", file("own.json")}), HasSubstr("--measure excludes --machine"));
  EXPECT_THAT(failure_of({"--top", "0"}), HasSubstr("--top"));
}

}  // namespace
}  // namespace lockstep::testing
