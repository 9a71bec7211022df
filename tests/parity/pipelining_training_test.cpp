// SPDX-License-Identifier: BSD-3-Clause
// Pipelines beside torch.distributed.pipelining's and beside one process.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "parity/both_sides.h"
#include "parity/tensor_record.h"
#include "support/ranks.h"

namespace lockstep::testing::pipelining_training_test {
namespace {

using namespace pipelining;
using at::Tensor;

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
    if (!output.empty()) records.push_back(record_of("output", output.front()));
    const torch::NoGradGuard no_grad;
    for (auto& [index, module] : modules) {
      for (const auto& [name, parameter] : module.named_parameters()) {
        records.push_back(record_of(fmt::format("{}.{}", index, name), parameter.grad()));
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
      records.push_back(record_of("output", output.front()));
      records.push_back(record_of("losses", torch::stack(losses)));
    }
    const auto expected = in_one_process(total, step, each.name == std::string("LoopedBFS"));
    for (auto& [index, module] : modules) {
      SCOPED_TRACE(fmt::format("{}, stage {} of {}", each.name, index, total));
      expect_same_gradients(module, expected[static_cast<std::size_t>(index)]);
      for (const auto& item : module->named_parameters())
        records.push_back(record_of(fmt::format("{}.{}", index, item.key()), item.value().grad()));
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

}  // namespace
}  // namespace lockstep::testing::pipelining_training_test
