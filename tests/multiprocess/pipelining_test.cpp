// SPDX-License-Identifier: BSD-3-Clause
// Pipelines with replicas, tied weights, plans and stages of the user's own; errors and lost ranks.
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
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using at::Tensor;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kWidth = 12, kBatch = 16, kMicrobatches = 4;

torch::nn::Sequential make_stage(int index) {
  torch::manual_seed(static_cast<std::uint64_t>(30 + index));
  torch::nn::Linear first(kWidth, kWidth);
  return torch::nn::Sequential(first, torch::nn::Tanh(), torch::nn::Linear(kWidth, kWidth));
}

Tensor loss_of(const Tensor& output, const Tensor& target) { return torch::mse_loss(output, target); }

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

struct FailingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (++calls == 2) throw std::runtime_error("the forward fails");
    return x;
  }
  int calls = 0;
};
TORCH_MODULE(Failing);

const Scenario failures("pipelining failures", [] {
  const auto context = init({.backend = "gloo", .timeout = std::chrono::seconds(20)});
  if (context.rank() == 1) {
    ScheduleGPipe schedule(PipelineStage(Failing(), 1, 2), 4, loss_of);
    EXPECT_THAT(error_of([&] {
                  schedule.step({}, torch::ones({8, 3}));
                }),
                HasSubstr("pipeline rank 1, stage 1, micro-batch 1, action 1F1: the forward fails"));
    return;
  }
  ScheduleGPipe schedule(PipelineStage(torch::nn::Linear(3, 3), 0, 2), 4, loss_of);
  EXPECT_THAT(error_of<ArgumentError>([&] {
                schedule.step({torch::ones({6, 3})});
              }),
              HasSubstr("an argument of size 6 in dimension 0 cannot be split into 4"));
  EXPECT_THAT(error_of([&] {
                schedule.step({torch::ones({8, 3})});
              }),
              HasSubstr("pipeline rank 0, stage 0, micro-batch 0, action 0B0: "));
});
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

// The others learn it at construction, and do not wait for a first run.
const Scenario refused_on_one("pipelining refused on one rank", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const bool odd = context.rank() == 1;
  const int index = mesh.get_local_rank("pp");
  const auto stage = [&](int own) {
    return PipelineStage(make_stage(index), own, 2,
                         {.group = mesh["pp"].get_group(), .data_parallel_group = mesh["dp"].get_group()});
  };
  const auto errors = [&](const std::function<void()>& construct) {
    const auto error = error_of(construct);
    return context.group().all_gather_object(error.substr(0, error.find('\n')));
  };
  const auto expect_told = [&](const std::function<void()>& construct, const char* reason) {
    EXPECT_THAT(errors(construct), Each(HasSubstr(reason)));
  };
  expect_told([&] { ScheduleGPipe(stage(odd ? 0 : index), 2, loss_of); },
              "rank 1 has the stages 0; the plan puts 1");
  expect_told([&] { ScheduleGPipe(stage(index), odd ? 0 : 2, loss_of); }, "micro-batches");
  expect_told([&] { ScheduleGPipe(stage(index), odd ? 4 : 2, loss_of); }, "and 4 micro-batches");
  expect_told([&] { ScheduleGPipe(stage(index), 2, loss_of, {.scale_grads = odd}); }, "scale_grads=true");
  expect_told([&] { ScheduleGPipe(stage(index), 2, odd ? LossFunction() : loss_of); }, "loss_fn=false");
  expect_told(
      [&] {
        if (odd) {
          Schedule1F1B(stage(index), 2, loss_of);
        } else {
          ScheduleGPipe(stage(index), 2, loss_of);
        }
      },
      "rank 1 has action");
  EXPECT_THAT(errors([&] { ScheduleGPipe(stage(index), 2, loss_of); }), Each(""));
  // Each stage has replicas of its own, in any order.
  const std::vector others{context.new_group({0, 2}), context.new_group({1, 3})};
  const auto two_stages = [&](int micro_batches) {
    std::vector<PipelineStage> own;
    for (const int turn : {0, 1}) {
      const bool is_second = (turn == 1) == (context.rank() < 2);
      own.emplace_back(
          make_stage(0), index + (is_second ? 2 : 0), 4,
          PipelineStageOptions{.group = mesh["pp"].get_group(),
                               .data_parallel_group = is_second ? others[static_cast<std::size_t>(index)]
                                                                : mesh["dp"].get_group()});
    }
    ScheduleInterleaved1F1B(own, micro_batches, loss_of);
  };
  expect_told([&] { two_stages(odd ? 0 : 2); }, "micro-batches");
  EXPECT_THAT(errors([&] { two_stages(2); }), Each(""));
  const auto net = make_stage(0);
  EXPECT_THAT(context.group().all_gather_object(error_of<std::exception>([&] {
    measure_layers(net, torch::ones({2, odd ? 3 : kWidth}), 1);
  })),
              Each(HasSubstr("mat1 and mat2 shapes cannot be multiplied")));
});
TEST(Pipelining, ARefusalOnOneRankIsAnErrorOnAll) {
  expect_all_passed(run_ranks(refused_on_one, {.world_size = 4, .timeout = std::chrono::seconds(30)}));
}

// What the constructors refuse, without other ranks.
TEST(Pipelining, StagesThatDoNotFit) {
  const auto context = init({.backend = "fake", .world_size = 2, .rank = 0});
  torch::nn::Linear layer(3, 3);
  const auto plan = make_plan("Interleaved1F1B", 2, 2, 2);
  const auto refused = [&](std::vector<PipelineStage> stages) {
    return error_of<ArgumentError>([&] { PipelineSchedule(stages, plan, loss_of); });
  };
  const auto refused_plan = [&](const Plan& other) {
    return error_of<ArgumentError>([&] { PipelineSchedule({{layer, 0, 4}, {layer, 2, 4}}, other, loss_of); });
  };
  EXPECT_THAT(refused({{layer, 0, 4}, {layer, 1, 4}}),
              HasSubstr("rank 0 has the stages 0, 1; the plan puts 0, 2"));
  EXPECT_THAT(refused({{layer, 0, 2}, {layer, 2, 4}}),
              HasSubstr("stage 0: it is one of 2 stages, the plan has 4"));
  EXPECT_THAT(refused({}), HasSubstr("needs a stage on each rank"));
  EXPECT_THAT(error_of<ArgumentError>([&] { PipelineStage(layer, 2, 2); }), HasSubstr("stage_index 2 of 2"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                PipelineStage(DistributedDataParallel(layer).ptr(), [](const Tensors& x) { return x; }, 0, 2,
                              {});
              }),
              HasSubstr("set data_parallel_group"));
  const auto sharded = make_stage(0);
  (void)fully_shard(sharded.ptr());
  EXPECT_THAT(refused({{sharded, 0, 4, {.data_parallel_group = context.group()}}, {layer, 2, 4}}),
              HasSubstr("stage 0: fully_shard() distributes it, so it cannot have a data_parallel_group"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                split_sequential(sharded, 2, {1, 1, NAN});
              }),
              HasSubstr("layer 2 has the cost nan"));
  EXPECT_THAT(refused_plan(add_send_recv(plan)), HasSubstr("no REDUCE_GRAD; add_reduce_grad() adds them"));
  auto early = add_comms(plan);
  auto& actions = early.pipeline_order.front();
  actions.insert(actions.begin(), Action{.stage_index = 0, .computation_type = ComputationType::REDUCE_GRAD});
  EXPECT_THAT(refused_plan(early), HasSubstr("after 0REDUCE_GRAD, which must be the last"));
  auto shorter = plan;
  shorter.n_microbatches = 1;
  EXPECT_THAT(refused_plan(shorter), HasSubstr("the plan has the micro-batches 0 to 0"));
  PipelineSchedule schedule({{layer, 0, 4}, {layer, 2, 4}}, plan);
  EXPECT_THAT(error_of<ArgumentError>([&] {
                schedule.step({torch::ones({4, 3})});
              }),
              HasSubstr("needs a loss_fn"));
  EXPECT_THAT(
      error_of<ArgumentError>([&] { schedule.register_custom_function(ComputationType::FORWARD, {}); }),
      HasSubstr("not F"));
}

TEST(Pipelining, BatchesHaveOneShape) {
  const auto context = init({.backend = "fake", .world_size = 2, .rank = 0});
  ScheduleGPipe schedule(PipelineStage(torch::nn::Linear(3, 3), 0, 2), 2, loss_of);
  schedule.eval({torch::ones({4, 3})});
  EXPECT_THAT(error_of<ArgumentError>([&] {
                schedule.eval({torch::ones({8, 3})});
              }),
              HasSubstr("the outputs are Float [4, 3], those of the first micro-batch were Float [2, 3]"));
}

TEST(Pipelining, ALossHasOneElementAndAHistory) {
  const auto context = init({.backend = "fake", .world_size = 1, .rank = 0});
  const auto message = [&](const LossFunction& loss_fn) {
    Schedule1F1B schedule(PipelineStage(torch::nn::Linear(3, 3), 0, 1), 2, loss_fn);
    return error_of<ArgumentError>([&] { schedule.step({torch::ones({4, 3})}, torch::ones({4, 3})); });
  };
  EXPECT_THAT(message([](const Tensor& y, const Tensor& t) { return (y - t).pow(2); }),
              HasSubstr("action 0F0: the loss has 6 elements"));
  EXPECT_THAT(message([](const Tensor& y, const Tensor&) { return y.detach().mean(); }),
              HasSubstr("action 0F0: the loss does not depend on parameters"));
}

TEST(Pipelining, ErrorsNameRankStageMicroBatchAndAction) { expect_all_passed(run_ranks(failures)); }

}  // namespace
}  // namespace lockstep::testing
