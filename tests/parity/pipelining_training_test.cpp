// SPDX-License-Identifier: BSD-3-Clause
// Pipelines beside torch.distributed.pipelining's and beside one process; data parallel, tied weights,
// errors.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "parity/both_sides.h"
#include "parity/ddp_record.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using at::Tensor;
using ::testing::HasSubstr;

constexpr int kWidth = 12, kBatch = 16, kMicrobatches = 8;
struct Case {
  const char* name;
  int stages;
  bool sharded = false;  // two pipelines, whose stages fully_shard() distributes over both
};
constexpr std::array kCases{Case{"GPipe", 1},
                            Case{"1F1B", 1},
                            Case{"Interleaved1F1B", 2},
                            Case{"LoopedBFS", 2},
                            Case{"InterleavedZeroBubble", 1},
                            Case{"InterleavedZeroBubble", 2},
                            Case{"ZBVZeroBubble", 2},
                            Case{"DualPipeV", 2},
                            Case{"InterleavedZeroBubble", 2, true},
                            Case{"Interleaved1F1B", 2, true},
                            Case{"ZBVZeroBubble", 2, true}};

// Sharded ones need two stages on each of two replicas.
std::vector<Case> cases_of(int world_size) {
  std::vector<Case> cases;
  std::ranges::copy_if(kCases, std::back_inserter(cases),
                       [&](const Case& each) { return !each.sharded || world_size == 4; });
  return cases;
}

torch::nn::Sequential make_stage(int index) {
  torch::manual_seed(static_cast<std::uint64_t>(30 + index));
  // Arguments of one call may be made in any order.
  torch::nn::Linear first(kWidth, 2 * kWidth), last(2 * kWidth, kWidth);
  return torch::nn::Sequential(first, torch::nn::Tanh(),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * kWidth})), last);
}

Tensor loss_of(const Tensor& output, const Tensor& target) { return torch::mse_loss(output, target); }

std::pair<Tensor, Tensor> batch(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  const auto x = torch::randn({kBatch, kWidth});
  return {x, torch::randn({kBatch, kWidth})};
}

Record gradient_record(const std::string& name, const Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  return {name, {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()}};
}

// The gradients of all stages in one process that runs the micro-batches one after the other. LoopedBFS runs
// their backwards from the last.
std::vector<torch::nn::Sequential> in_one_process(int total, int step, bool backwards) {
  std::vector<torch::nn::Sequential> stages;
  for (int i = 0; i < total; ++i) stages.push_back(make_stage(i));
  const auto [x, target] = batch(step);
  const auto xs = x.chunk(kMicrobatches), targets = target.chunk(kMicrobatches);
  for (std::size_t i = 0; i < kMicrobatches; ++i) {
    const auto at = backwards ? kMicrobatches - 1 - i : i;
    auto hidden = xs[at];
    for (auto& stage : stages) hidden = stage->forward(hidden);
    loss_of(hidden, targets[at]).backward();
  }
  for (auto& stage : stages)
    for (auto& parameter : stage->parameters()) parameter.mutable_grad().div_(kMicrobatches);
  return stages;
}

void expect_same_gradients(const torch::nn::Sequential& ours, const torch::nn::Sequential& expected) {
  const auto a = ours->named_parameters(), b = expected->named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (const auto& item : a) EXPECT_TRUE(item.value().grad().equal(b[item.key()].grad())) << item.key();
}

std::vector<Record> run_sharded_case(const Case& each) {
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const auto pipeline = mesh["pp"].get_group();
  const int total = pipeline.size() * each.stages;
  const auto plan = make_plan(each.name, pipeline.size(), each.stages, kMicrobatches / 2);
  const auto rank_of = stage_to_rank(plan);
  std::map<int, FSDPModule> modules;
  std::vector<PipelineStage> stages;
  for (int i = 0; i < total; ++i) {
    if (rank_of[static_cast<std::size_t>(i)] != pipeline.rank()) continue;
    auto module = make_stage(i);
    const FullyShardOptions options{.mesh = mesh["dp"], .reshard_after_forward = false};
    (void)fully_shard(*module[0], options);
    modules.emplace(i, fully_shard(*module, options));
    stages.emplace_back(module, i, total, PipelineStageOptions{.group = pipeline});
  }
  PipelineSchedule schedule(stages, plan, loss_of);
  std::vector<Record> records;
  for (int step = 0; step < 2; ++step) {
    const auto [x, target] = batch(step);
    const auto half = mesh.get_local_rank("dp") * kBatch / 2;
    for (auto& [index, module] : modules) module.zero_grad();
    const auto output =
        schedule.step({x.slice(0, half, half + kBatch / 2)}, target.slice(0, half, half + kBatch / 2));
    if (!output.empty()) records.push_back(gradient_record("output", output.front()));
    const torch::NoGradGuard no_grad;
    for (auto& [index, module] : modules) {
      for (const auto& [name, parameter] : module.named_parameters()) {
        records.push_back(gradient_record(fmt::format("{}.{}", index, name), parameter.grad()));
        parameter.sub_(parameter.grad(), 0.1);
      }
    }
  }
  return records;
}

std::vector<Record> run_case(const Case& each, const Context& context) {
  if (each.sharded) return run_sharded_case(each);
  const int total = context.world_size() * each.stages;
  const auto plan = make_plan(each.name, context.world_size(), each.stages, kMicrobatches);
  const auto rank_of = stage_to_rank(plan);
  std::map<int, torch::nn::Sequential> modules;
  std::vector<PipelineStage> stages;
  for (int i = 0; i < total; ++i) {
    if (rank_of[static_cast<std::size_t>(i)] != context.rank()) continue;
    modules[i] = make_stage(i);
    stages.emplace_back(modules[i], i, total);
  }
  PipelineSchedule schedule(stages, plan, loss_of);
  std::vector<Record> records;
  for (int step = 0; step < 2; ++step) {
    const auto [x, target] = batch(step);
    for (auto& [index, module] : modules) module->zero_grad();
    Tensors losses;
    const auto output = schedule.step({x}, target, &losses);
    EXPECT_EQ(output.size(), modules.contains(total - 1) ? 1 : 0);
    if (!output.empty()) {
      records.push_back(gradient_record("output", output.front()));
      records.push_back(gradient_record("losses", torch::stack(losses)));
    }
    const auto expected = in_one_process(total, step, each.name == std::string("LoopedBFS"));
    for (auto& [index, module] : modules) {
      SCOPED_TRACE(fmt::format("{}, stage {} of {}", each.name, index, total));
      expect_same_gradients(module, expected[static_cast<std::size_t>(index)]);
      for (const auto& item : module->named_parameters())
        records.push_back(gradient_record(fmt::format("{}.{}", index, item.key()), item.value().grad()));
    }
  }
  const auto [x, target] = batch(5);
  Tensors losses;
  const auto output = schedule.eval({x}, target, &losses);
  if (!output.empty()) {
    EXPECT_TRUE(losses.at(1).equal(loss_of(output[0].slice(0, 2, 4), target.slice(0, 2, 4))));
  }
  return records;
}

std::string file_name(const Case& each) {
  return fmt::format("{}_{}{}", each.name, each.stages, each.sharded ? "_sharded" : "");
}

const Scenario all_schedules("pipelining schedules", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& each : cases_of(context.world_size()))
      write_records(record_file(record_folder(), file_name(each), context.rank()), run_case(each, context));
  });
});

class PipeliningParity : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(PipeliningParity, OutputsLossesAndGradientsToTheLastBit) {
  const auto& [backend, world_size] = GetParam();
  const auto all = cases_of(world_size);
  std::vector<std::string> cases;
  for (const auto& each : all)
    cases.push_back(fmt::format("name={} schedule={} stages={} sharded={:d}", file_name(each), each.name,
                                each.stages, each.sharded));
  const BothSides sides("parity/pipelining_training.py", all_schedules, cases, backend, world_size);
  ASSERT_FALSE(HasFailure());
  for (const auto& each : all) {
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {} of {}", file_name(each), rank, world_size));
      const auto python = read_records(sides.python_file(file_name(each), rank));
      const auto ours = read_records(sides.our_file(file_name(each), rank));
      ASSERT_EQ(python.size(), ours.size());
      for (std::size_t i = 0; i < python.size(); ++i) EXPECT_EQ(first_difference(python[i], ours[i]), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSize, PipeliningParity,
                         ::testing::Values(std::pair{"gloo", 2}, std::pair{"gloo", 4}, std::pair{"shm", 4}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

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
      kMicrobatches / 2, loss_of);
  const auto [x, target] = batch(0);
  const auto half = mesh.get_local_rank("dp") * kBatch / 2;
  schedule.step({x.slice(0, half, half + kBatch / 2)}, target.slice(0, half, half + kBatch / 2));
  const auto expected = in_one_process(2, 0, false)[static_cast<std::size_t>(pipeline.rank())]->parameters();
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

struct FailingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (++calls == 2) throw std::runtime_error("the forward fails");
    return x;
  }
  int calls = 0;
};
TORCH_MODULE(Failing);

const Scenario failures("pipelining failures", [] {
  const auto context = init({.backend = "gloo", .timeout = std::chrono::seconds(2)});
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
  EXPECT_THAT(refused_plan(add_send_recv(plan)), HasSubstr("not 0REDUCE_GRAD; add_reduce_grad() adds it"));
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
