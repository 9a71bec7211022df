// SPDX-License-Identifier: BSD-3-Clause
// What pipelines refuse, alike on all ranks, and how errors of stages are named.
#include <chrono>
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "multiprocess/pipeline_stages.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using at::Tensor;
using ::testing::Each;
using ::testing::HasSubstr;

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
