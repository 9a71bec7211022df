// SPDX-License-Identifier: BSD-3-Clause
// Pipelines with replicas, tied weights, plans and stages of the user's own; lost ranks.
#include <chrono>
#include <csignal>
#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "base/env.h"
#include "multiprocess/pipeline_stages.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using at::Tensor;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kBatch = 16, kMicrobatches = 4;

std::pair<Tensor, Tensor> batch(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  const auto x = torch::randn({kBatch, kWidth});
  return {x, torch::randn({kBatch, kWidth})};
}

// The gradients of both stages in one process.
std::vector<torch::nn::Sequential> in_one_process(int step) {
  std::vector<torch::nn::Sequential> stages{make_stage(0), make_stage(1)};
  const auto [x, target] = batch(step);
  loss_of(stages[1]->forward(stages[0]->forward(x)), target).backward();
  return stages;
}

// Two pipelines of two stages, each on half of the batch.
const Scenario data_parallel("pipelining data parallel", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const auto pipeline = mesh["pp"].get_group();
  auto module = make_stage(pipeline.rank());
  if (mesh.get_local_rank("dp") == 1) {  // the first run copies the other replica
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) parameter.add_(1);
  }
  ScheduleInterleavedZeroBubble schedule(
      {PipelineStage(module, pipeline.rank(), 2,
                     {.group = pipeline, .data_parallel_group = mesh["dp"].get_group()})},
      kMicrobatches, loss_of);
  const auto [x, target] = batch(0);
  const auto half = mesh.get_local_rank("dp") * kBatch / 2;
  schedule.step({x.slice(0, half, half + kBatch / 2)}, target.slice(0, half, half + kBatch / 2));
  const auto expected = in_one_process(0)[static_cast<std::size_t>(pipeline.rank())]->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(module->parameters()[i].grad().allclose(expected[i].grad(), 1e-5, 1e-7));
});
TEST(Pipelining, DataParallelReducesAfterTheLastWeightPart) {
  expect_all_passed(run_ranks(data_parallel, {.world_size = 4}));
}

struct EmbeddingImpl : torch::nn::Module {
  explicit EmbeddingImpl(bool output) : is_output(output) {
    weight = register_parameter("weight", torch::randn({7, kWidth}));
  }
  Tensor forward(const Tensor& x) { return is_output ? x.mm(weight.t()) : weight.index({x}); }
  bool is_output;
  Tensor weight;
};
TORCH_MODULE(Embedding);

// The first stage and the last have the same matrix; it starts different.
const Scenario tied("pipelining tied", [] {
  const auto context = init({.backend = "gloo"});
  torch::manual_seed(70);
  const Embedding first(false), last(true);
  const auto mine = context.rank() == 0 ? first : last;
  Schedule1F1B schedule(PipelineStage(mine, context.rank(), 2, {.tied_parameters = {{"wte", mine->weight}}}),
                        2, [](const Tensor& y, const Tensor& t) { return torch::cross_entropy_loss(y, t); },
                        {.scale_grads = false});
  const auto x = torch::randint(7, {6}), target = torch::randint(7, {6});
  schedule.eval({x}, target);
  const auto weight = first->weight.detach().clone().requires_grad_();
  EXPECT_TRUE(mine->weight.equal(weight));
  torch::cross_entropy_loss(weight.index({x}).mm(weight.t()), target).backward();
  for (int step = 1; step <= 2; ++step) {
    schedule.step({x}, target);
    EXPECT_TRUE(mine->weight.grad().allclose(2 * step * weight.grad(), 1e-5, 1e-7)) << step;
  }
});
TEST(Pipelining, TiedParametersStartEqualAndHaveTheSumOfGradients) { expect_all_passed(run_ranks(tied)); }

// The same, each stage distributed over two ranks, which have 4 and 3 rows of the matrix.
const Scenario tied_shards("pipelining tied shards", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const auto pipeline = mesh["pp"].get_group();
  const auto row = mesh.get_local_rank("dp");
  for (const bool share_memory : {false, true}) {
    SCOPED_TRACE(share_memory);
    torch::manual_seed(70);
    const Embedding first(false), last(true);
    const auto whole = first->weight.detach().clone().requires_grad_();
    auto mine = pipeline.rank() == 0 ? first : last;
    const auto shards = fully_shard(*mine, {.mesh = mesh["dp"], .share_memory = share_memory}).parameters();
    Schedule1F1B schedule(PipelineStage(mine, pipeline.rank(), 2,
                                        {.group = pipeline, .tied_parameters = {{"wte", mine->weight}}}),
                          2, [](const Tensor& y, const Tensor& t) { return torch::cross_entropy_loss(y, t); },
                          {.scale_grads = false});
    const auto x = torch::randint(7, {8}), target = torch::randint(7, {8});
    torch::optim::SGD sgd(shards, 0.25), expected({whole}, 0.25);
    for (int step = 1; step <= 4; ++step) {
      if (step != 2) {  // the second one adds to the gradients
        expected.zero_grad();
        step == 3 ? mine->zero_grad() : sgd.zero_grad();
      }
      schedule.step({x.slice(0, 4 * row, 4 * row + 4)}, target.slice(0, 4 * row, 4 * row + 4));
      (2 * torch::cross_entropy_loss(whole.index({x}).mm(whole.t()), target)).backward();
      EXPECT_NEAR(schedule.clip_grad_norm_(1e9), whole.grad().norm().item<double>(), 1e-5) << step;
      sgd.step();
      expected.step();
      EXPECT_TRUE(shards.at(0).allclose(whole.slice(0, 4 * row, 4 * row + 4), 1e-5, 1e-6)) << step;
    }
  }
  Embedding embedding(pipeline.rank() == 1);
  if (pipeline.rank() == 1) (void)fully_shard(embedding, {.mesh = mesh["dp"]});
  Schedule1F1B schedule(PipelineStage(embedding, pipeline.rank(), 2,
                                      {.group = pipeline, .tied_parameters = {{"wte", embedding->weight}}}),
                        2, loss_of);
  EXPECT_THAT(
      error_of<ArgumentError>([&] { schedule.eval({torch::randint(7, {8})}); }),
      ContainsRegex("\"wte\" has the sizes 7x12 in stage 0 on rank 0 and [34]x12 in stage 1 on rank 1"));
});
TEST(Pipelining, TiedParametersOfShardedStages) {
  expect_all_passed(run_ranks(tied_shards, {.world_size = 4}));
}

// Uses a layer always, one if asked to, and one never. The gradients of a replica fill two buckets.
struct PartlyUsedImpl : torch::nn::Module {
  explicit PartlyUsedImpl(bool uses) : uses_rare(uses) {
    torch::manual_seed(50);
    wide = register_parameter("wide", torch::ones({4 << 20}));
    for (const auto* name : {"used", "rare", "never"})
      layers.push_back(register_module(name, torch::nn::Linear(kWidth, kWidth)));
  }
  Tensor forward(const Tensor& x) {
    const auto y = torch::tanh(layers[0](x)) * wide.mean();
    return uses_rare ? layers[1](y) : y;
  }
  bool uses_rare;
  Tensor wide;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(PartlyUsed);

void compare_parameters(const PartlyUsed& net, const PartlyUsed& expected) {
  const auto ours = net->named_parameters(), theirs = expected->named_parameters();
  for (const auto& item : ours) {
    const auto& other = theirs[item.key()];
    EXPECT_EQ(item.value().grad().defined(), other.grad().defined()) << item.key();
    EXPECT_TRUE(item.value().allclose(other, 0, 1e-6)) << item.key();
  }
}

// Two replicas of one stage; the first alone uses a layer.
void train_partly_used_replicas() {
  const auto mesh = init_device_mesh({2, 1}, {.mesh_dim_names = {"dp", "pp"}});
  const auto replica = mesh.get_local_rank("dp");
  PartlyUsed net(replica == 0), expected(false);
  net->to(torch::kDouble);
  expected->to(torch::kDouble);
  Schedule1F1B schedule(
      PipelineStage(net, 0, 1,
                    {.group = mesh["pp"].get_group(), .data_parallel_group = mesh["dp"].get_group()}),
      kMicrobatches, loss_of);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2), reference(expected->parameters(), 1e-2);
  for (int step = 0; step < 2; ++step) {
    const auto [x, target] = batch(step);
    optimizer.zero_grad();
    reference.zero_grad();
    const auto half = [](const Tensor& tensor, int i) {
      return tensor.to(torch::kDouble).chunk(2)[static_cast<std::size_t>(i)];
    };
    schedule.step({half(x, replica)}, half(target, replica));
    for (const int i : {0, 1}) {
      expected->uses_rare = i == 0;
      (loss_of(expected->forward(half(x, i)), half(target, i)) / 2).backward();
    }
    optimizer.step();
    reference.step();
    compare_parameters(net, expected);
  }
}

// Two stages that share a layer of which one has a gradient, and a layer of which none has.
void train_partly_used_ties(int rank) {
  PartlyUsed first(true), last(false);
  auto net = rank == 0 ? first : last;
  Schedule1F1B schedule(PipelineStage(net, rank, 2,
                                      {.tied_parameters = {{"rare", net->layers[1]->weight},
                                                           {"never", net->layers[2]->weight}}}),
                        2, loss_of, {.scale_grads = false});
  const auto [x, target] = batch(3);
  schedule.step({x}, target);
  EXPECT_GT(net->layers[1]->weight.grad().abs().sum().item<double>(), 0);
  EXPECT_FALSE(net->layers[2]->weight.grad().defined());
}

const Scenario partly_used("pipelining partly used", [] {
  const auto context = init({.backend = "gloo"});
  train_partly_used_replicas();
  train_partly_used_ties(context.rank());
});
TEST(Pipelining, ParametersThatNoReplicaUsesHaveNoGradient) { expect_all_passed(run_ranks(partly_used)); }

// The first stage returns two tensors, the last one has no parameters.
struct ForkImpl : torch::nn::Module {
  ForkImpl() { linear = register_module("linear", torch::nn::Linear(3, 3)); }
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const auto y = linear(x.t());
    return {y.t(), x * 2};
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Fork);
struct JoinImpl : torch::nn::Module {
  Tensor forward(const Tensor& a, const Tensor& b) { return a.exp() * b; }
};
TORCH_MODULE(Join);

const Scenario own_plan("pipelining own plan", [] {
  const auto context = init({.backend = "shm"});
  torch::manual_seed(3);
  Fork fork;
  const auto x = torch::randn({3, 8}), target = torch::randn({3, 8});
  const auto plan = plan_from_csv("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n");
  const auto stage = context.rank() == 0 ? PipelineStage(fork, 0, 2, "cpu") : PipelineStage(Join(), 1, 2);
  PipelineSchedule schedule({stage}, plan, loss_of, {.chunk_dim = 1, .return_outputs = false});
  Tensors losses;
  EXPECT_TRUE(schedule.step({.args = {x}, .target = target, .losses = &losses}).empty());
  EXPECT_EQ(losses.size(), context.rank() == 0 ? 0 : 2);
  const auto timeline = schedule.timeline();
  std::string actions;
  for (const auto& each : timeline.actions) {
    actions += fmt::format("{}:{} ", each.rank, each.action.str());
    EXPECT_LT(each.start, each.end);
    EXPECT_LE(each.end, timeline.step_time);
  }
  EXPECT_EQ(actions, "0:0F0 0:0F1 0:0B1 0:0B0 1:1F0 1:1F1 1:1B1 1:1B0 ");
  EXPECT_THAT(timeline.peak_microbatches, ::testing::ElementsAre(2, 2));
  EXPECT_EQ(stage_times(timeline).size(), 2);
  EXPECT_TRUE(schedule.eval({.args = {x}}).empty());
  if (context.rank() == 1) return;
  const auto gradient = fork->linear->weight.grad().clone();
  fork->zero_grad();
  const auto [a, b] = fork->forward(x);
  loss_of(Join()->forward(a, b), target).backward();
  EXPECT_TRUE(gradient.allclose(fork->linear->weight.grad(), 1e-5, 1e-7));
});
TEST(Pipelining, APlanFromCsvAndStagesOfSeveralTensors) { expect_all_passed(run_ranks(own_plan)); }

const Scenario custom_function("pipelining custom function", [] {
  const auto context = init({.backend = "fake", .world_size = 1, .rank = 0});
  torch::nn::Linear layer(kWidth, kWidth);
  const auto [x, target] = batch(0);
  Schedule1F1B schedule(PipelineStage(layer, 0, 1), 2, loss_of);
  schedule.step({x}, target);
  const auto scaled = layer->weight.grad().clone();
  layer->zero_grad();
  std::vector<std::string> calls;
  for (const auto type : {ComputationType::UNSHARD, ComputationType::REDUCE_GRAD})
    schedule.register_custom_function(type, [&](const Action& action) { calls.push_back(action.str()); });
  schedule.step({x}, target);
  EXPECT_THAT(calls, ::testing::ElementsAre("0UNSHARD", "0REDUCE_GRAD"));
  EXPECT_TRUE(layer->weight.grad().allclose(2 * scaled));
});
TEST(Pipelining, ACustomFunctionReplacesTheReduction) {
  expect_all_passed(run_ranks(custom_function, {.world_size = 1}));
}

// Two pipelines whose stages are sharded over both. Rank `TEST_VICTIM` dies in its second step.
const Scenario loses_a_rank("pipelining loses a rank", [] {
  const auto context =
      init({.backend = Env().get("TEST_BACKEND").value(), .timeout = std::chrono::seconds(20)});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const auto pipeline = mesh["pp"].get_group();
  const auto module = make_stage(pipeline.rank());
  auto sharded = fully_shard(module.ptr(), {.mesh = mesh["dp"]});
  int forwards = 0;
  PipelineStage stage(module.ptr(),
                      [&, net = module](const Tensors& x) mutable {
                        const bool dies =
                            context.rank() == Env().get_int("TEST_VICTIM") && ++forwards == kMicrobatches + 2;
                        if (dies) ::raise(SIGKILL);
                        return Tensors{net->forward(x.at(0))};
                      },
                      pipeline.rank(), 2, {.group = pipeline});
  Schedule1F1B schedule(stage, kMicrobatches, loss_of);
  for (int step = 0; step < 3; ++step) {
    const auto [x, target] = batch(step);
    schedule.step({x}, target);
    sharded.zero_grad();
  }
});

class LostStage : public ::testing::TestWithParam<std::pair<const char*, int>> {};
TEST_P(LostStage, IsNamedOnEverySurvivor) {
  const auto& [backend, victim] = GetParam();
  const auto results = run_ranks(
      loses_a_rank,
      {.world_size = 4, .env = {{"TEST_BACKEND", backend}, {"TEST_VICTIM", std::to_string(victim)}}});
  for (int rank = 0; rank < 4; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    if (rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.err;
      continue;
    }
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, ContainsRegex(fmt::format("rank {} \\(pid|global rank {}, pid", victim, victim)))
        << "rank " << rank;
    EXPECT_THAT(result.err,
                ContainsRegex(fmt::format("rank [01] of 2 \\(global rank {}, group mesh_", rank)));
    EXPECT_THAT(result.err, ContainsRegex("rank [01] \\(global rank [0-3], pid "));
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, LostStage,
                         ::testing::Values(std::pair{"gloo", 1}, std::pair{"shm", 0}, std::pair{"shm", 3}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

}  // namespace
}  // namespace lockstep::testing
