// SPDX-License-Identifier: BSD-3-Clause
// Stages of a pipeline that change after the first run, on all ranks or on one.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "multiprocess/changed_modules.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::changed_stages_test {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const Scenario changed_stages("changed pipeline stages", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm"});
  const auto error_after = [&](const std::function<void(Sequential&)>& change) {
    torch::manual_seed(context.rank());
    Sequential stage(Linear(4, 4), Linear(4, 4));
    pipelining::ScheduleGPipe schedule(
        pipelining::PipelineStage(stage, context.rank(), 2), 2,
        [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
    const auto step = [&] { schedule.step({torch::ones({4, 4})}, torch::zeros({4, 4})); };
    step();
    change(stage);
    return error_of<std::exception>(step);
  };
  const auto weight = [](Sequential& stage) -> Tensor& { return stage[1]->as<Linear>()->weight; };
  EXPECT_EQ(error_after([&](auto& stage) { weight(stage).set_requires_grad(false); }), "");
  EXPECT_THAT(error_after([&](auto& stage) { stage->to(torch::kDouble); }),
              HasSubstr("parameter 0.weight was Float[4, 4] and is Double[4, 4] since the first run"));
  EXPECT_THAT(error_after([&](auto& stage) {
                weight(stage) = leaf({4, 4});
              }),
              HasSubstr("parameter 1.weight has been replaced"));
  EXPECT_THAT(error_after([&](auto& stage) { stage[1]->register_parameter("scale", leaf({4})); }),
              HasSubstr("parameter 1.scale has been added"));
});
const Scenario changed_stage_of_one("a pipeline stage changed on one rank", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto other = context.new_group({0, 1});  // the ranks' calls differ after an error
  Sequential stage(Linear(4, 4), Linear(4, 4));
  pipelining::ScheduleGPipe schedule(pipelining::PipelineStage(stage, context.rank(), 2), 2,
                                     [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
  const auto step = [&] { schedule.step({torch::ones({4, 4})}, torch::zeros({4, 4})); };
  step();
  if (context.rank() == 1) stage[1]->register_parameter("scale", leaf({4}));
  const auto errors = other.all_gather_object(first_line(error_of<std::exception>(step)));
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 of 2: stage 1: parameter 1.scale has been added")));
});
TEST(ChangedStages, AChangeOfOneStageEndsTheRunOfAllRanks) {
  expect_all_passed(run_ranks(changed_stage_of_one));
}

// Two replicas of two stages. Returns the first lines of all ranks' errors after a change on some.
std::vector<std::string> errors_of_replicas(
    const Context& context, const std::function<void(int rank, torch::nn::Sequential&)>& before,
    const std::function<void(int rank, torch::nn::Sequential&)>& change, int steps = 1) {
  using torch::nn::Linear;
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const int index = context.rank() % 2;
  torch::manual_seed(index);
  torch::nn::Sequential stage(Linear(4, 4), Linear(4, 4), Linear(4, 4));
  before(context.rank(), stage);
  pipelining::ScheduleGPipe schedule(
      pipelining::PipelineStage(
          stage, index, 2, {.group = mesh["pp"].get_group(), .data_parallel_group = mesh["dp"].get_group()}),
      2, [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
  const auto step = [&] { schedule.step({torch::ones({4, 4})}, torch::zeros({4, 4})); };
  const auto error = error_of<std::exception>([&] {
    step();
    change(context.rank(), stage);
    for (int i = 0; i < steps; ++i) step();
  });
  return context.group().all_gather_object(first_line(error));
}

const Scenario changed_replicas("replicas of a pipeline stage", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto nothing = [](int, auto&) {};
  const auto freeze = [](auto& stage, std::size_t layer) { set_trained(*stage[layer], false); };
  EXPECT_THAT(errors_of_replicas(
                  context, nothing, [&](int, auto& stage) { freeze(stage, 1); }, 2),
              Each(""));
  EXPECT_THAT(errors_of_replicas(context, nothing,
                                 [&](int rank, auto& stage) {
                                   if (rank == 3) freeze(stage, 1);
                                 }),
              Each(HasSubstr("stage 1: parameter 1.weight has been frozen")));
  // Of equal sizes, so that the calls are alike.
  const auto errors = errors_of_replicas(context, nothing, [&](int rank, auto& stage) {
    if (rank % 2 == 0) freeze(stage, rank == 0 ? 1 : 2);
  });
  EXPECT_THAT(errors, Each(HasSubstr("has been frozen")));
  EXPECT_THAT(errors[0], HasSubstr("the ranks' modules differ"));
  const auto at_first = errors_of_replicas(
      context,
      [&](int rank, auto& stage) {
        if (rank % 2 == 0) freeze(stage, rank == 0 ? 1 : 2);
      },
      nothing);
  EXPECT_THAT(at_first, Each(HasSubstr("the ranks' modules differ")));
});

const Scenario unsendable_replicas("replicas of a stage with buffers that cannot be sent", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto nothing = [](int, auto&) {};
  const auto errors_with = [&](const Tensor& mask, int ranks) {
    return errors_of_replicas(
        context,
        [&](int rank, auto& stage) {
          if (rank % 2 == 1) stage->register_buffer("mask", rank <= ranks ? mask : torch::ones({3}));
        },
        nothing);
  };
  const auto expanded = torch::ones({1}).expand({3});
  const auto of_all = errors_with(expanded, 3);
  EXPECT_THAT(of_all, Each(AllOf(HasSubstr("stage 1 of a pipeline: the tensor mask, Float[3], has several "
                                           "elements in one place"),
                                 HasSubstr("clone()"), Not(HasSubstr("params_and_buffers_to_ignore")))));
  EXPECT_THAT(errors_with(expanded, 1), Each(HasSubstr("rank 0 has buffer mask Float[3] strides [0]")));
  EXPECT_THAT(errors_with(torch::ones({2, 2}).to_sparse(), 3), Each(HasSubstr("to_dense()")));
  EXPECT_THAT(errors_with(torch::ones({3}).to(at::kFloat8_e5m2), 3), Each(HasSubstr("does not carry")));
  EXPECT_THAT(errors_with(torch::ones({4, 6}).narrow(1, 1, 2), 3), Each(""));
  EXPECT_THAT(errors_with(torch::_neg_view(torch::ones({3})), 3), Each(""));
});
TEST(ChangedStages, BuffersOfReplicasThatCannotBeSentAreNamed) {
  expect_all_passed(run_ranks(unsendable_replicas, {.world_size = 4}));
}

TEST(ChangedStages, ReplicasOfAStageFreezeTheSameParameters) {
  expect_all_passed(run_ranks(changed_replicas, {.world_size = 4}));
}

TEST(ChangedStages, PipelinesRefuseOtherParameters) { expect_all_passed(run_ranks(changed_stages)); }

}  // namespace
}  // namespace lockstep::testing::changed_stages_test
