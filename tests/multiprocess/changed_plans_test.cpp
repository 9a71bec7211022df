// SPDX-License-Identifier: BSD-3-Clause
// Modules that change after parallelize_module(), on all ranks or on one.
#include <chrono>
#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "multiprocess/changed_modules.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::changed_plans_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const Scenario changed_plan("changed tensor parallel module", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const auto error_after = [&](const std::function<void(Sequential&)>& change) {
    torch::manual_seed(4);
    Sequential net(Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})), Linear(4, 4));
    tensor_parallel::parallelize_module(
        *net, mesh,
        {{"0", tensor_parallel::ColwiseParallel{.output_layouts = tensor_parallel::Replicate()}},
         {"2", tensor_parallel::ColwiseParallel{.output_layouts = tensor_parallel::Replicate()}}});
    const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
    step();
    return error_of<std::exception>([&] {
      change(net);
      step();
    });
  };
  EXPECT_EQ(error_after([&](auto& net) { net[0]->template as<Linear>()->weight.set_requires_grad(false); }),
            "");
  EXPECT_THAT(error_after([&](auto& net) { net->to(torch::kDouble); }), HasSubstr("0.weight"));
  EXPECT_THAT(error_after([&](auto& net) { net[0]->template as<Linear>()->bias = leaf({4}); }),
              HasSubstr("parameter 0.bias has been replaced"));
  EXPECT_THAT(error_after([&](auto& net) {
                net[2]->template as<Linear>()->weight.set_data(torch::ones({4, 4}));
              }),
              HasSubstr("parameter 2.weight: its data was replaced"));
  EXPECT_THAT(error_after([&](auto& net) { net[1]->register_parameter("scale", leaf({4})); }),
              HasSubstr("parameter 1.scale has been added"));
});
TEST(ChangedPlans, ParallelizedModulesRefuseOtherParameters) { expect_all_passed(run_ranks(changed_plan)); }

const Scenario extended_plan("a module parallelized twice", [] {
  using torch::nn::Linear;
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const tensor_parallel::ColwiseParallel whole_output{.output_layouts = tensor_parallel::Replicate()};
  torch::manual_seed(4);
  torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
  tensor_parallel::parallelize_module(*net, mesh, {{"0", whole_output}, {"1", whole_output}});
  net->push_back("head", Linear(4, 4));
  tensor_parallel::parallelize_module(*net, mesh, {{"head", whole_output}});
  EXPECT_EQ(error_of<std::exception>([&] { net->forward(torch::ones({2, 4})).sum().backward(); }), "");
  net[1]->register_parameter("scale", leaf({4}));
  EXPECT_THAT(error_of<std::exception>([&] {
                net->forward(torch::ones({2, 4}));
              }),
              HasSubstr("parameter 1.scale has been added"));
});
const Scenario changed_plan_of_one("a parallelized module changed on one rank", [] {
  using torch::nn::Linear;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const auto other = context.new_group({0, 1});  // the ranks' calls in the mesh's group differ after an error
  torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
  tensor_parallel::parallelize_module(
      *net, mesh, {{"0", tensor_parallel::ColwiseParallel{}}, {"1", tensor_parallel::RowwiseParallel{}}});
  const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
  step();
  if (context.rank() == 1) net[0]->register_parameter("scale", leaf({4}));
  const auto errors = other.all_gather_object(first_line(error_of<std::exception>(step)));
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 of 2: parameter 0.scale has been added")));
});
const Scenario unplanned_of_one("whole parameters of a parallelized module changed on one rank", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto errors_after = [&](const std::function<void(int rank, Sequential&)>& change) {
    const auto mesh = DeviceMesh::from_group(context.new_group({0, 1}, {.timeout = kTimeout}));
    Sequential net(Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})), Linear(4, 4),
                   Linear(4, 4));
    tensor_parallel::parallelize_module(
        *net, mesh, {{"2", tensor_parallel::ColwiseParallel{}}, {"3", tensor_parallel::RowwiseParallel{}}});
    const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
    step();
    change(context.rank(), net);
    const auto error = error_of<std::exception>([&] { step(), step(); });
    return context.group().all_gather_object(first_line(error));
  };
  const auto freeze = [](auto& net, std::size_t layer) { set_trained(*net[layer], false); };
  EXPECT_THAT(errors_after([&](int, auto& net) { freeze(net, 0); }), Each(""));
  EXPECT_THAT(errors_after([&](int rank, auto& net) {
                freeze(net, 2);
                if (rank == 0) (void)net[2]->template as<Linear>()->weight.detach().norm();
              }),
              Each(""));
  for (const std::size_t layer : {0, 1, 2}) {
    EXPECT_THAT(errors_after([&](int rank, auto& net) {
                  if (rank == 1) freeze(net, layer);
                }),
                Each(HasSubstr(fmt::format("parameter {}.weight has been frozen", layer))));
  }
  EXPECT_THAT(errors_after([&](int rank, auto& net) { freeze(net, rank == 0 ? 0 : 1); }),
              Each(HasSubstr("the ranks' modules differ")));
  EXPECT_THAT(errors_after([](int rank, auto& net) {
                if (rank == 1) net[1]->template as<torch::nn::LayerNorm>()->weight = leaf({4});
              }),
              Each(HasSubstr("parameter 1.weight has been replaced")));
});
TEST(ChangedPlans, ParametersOfAParallelizedModuleChangeAlike) {
  expect_all_passed(run_ranks(unplanned_of_one));
}

// No call of its forward tells the other ranks.
const Scenario silent_forward_of_one(
    "a parallelized layer frozen on one rank before a forward without calls", [] {
      const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
      const auto mesh = DeviceMesh::from_group(context.new_group({0, 1}));
      torch::nn::Linear layer(4, 4);
      tensor_parallel::parallelize_module(*layer, mesh, {{"", tensor_parallel::ColwiseParallel{}}});
      const auto step = [&] { layer->forward(leaf({2, 4})).sum().backward(); };
      step();
      if (context.rank() == 1) layer->weight.set_requires_grad(false);
      const auto errors = context.group().all_gather_object(first_line(error_of<std::exception>(step)));
      EXPECT_THAT(errors, Each(HasSubstr("parameter weight has been frozen")));
    });
TEST(ChangedPlans, AParallelizedLayerFrozenOnOneRankEndsTheBackwardOfOthers) {
  expect_all_passed(run_ranks(silent_forward_of_one));
}

// Rank 0 has no group with rank 3.
const Scenario plans_over_two_dimensions(
    "a module in plans over two dimensions of a mesh, frozen on one rank", [] {
      const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
      const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"a", "b"}});
      const tensor_parallel::ColwiseParallel whole_output{.output_layouts = tensor_parallel::Replicate()};
      torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
      tensor_parallel::parallelize_module(*net, mesh["a"], {{"0", whole_output}});
      tensor_parallel::parallelize_module(*net, mesh["b"], {{"1", whole_output}});
      const auto step = [&] { net->forward(leaf({2, 4})).sum().backward(); };
      step();
      if (context.rank() == 3) set_trained(*net[0], false);
      const auto errors = context.group().all_gather_object(first_line(error_of<std::exception>(step)));
      EXPECT_THAT(errors, Each(HasSubstr("parameter 0.weight has been frozen")));
    });
TEST(ChangedPlans, AChangeOnOneRankReachesTheRanksOfOtherGroups) {
  expect_all_passed(run_ranks(plans_over_two_dimensions, {.world_size = 4}));
}
TEST(ChangedPlans, AChangeOnOneRankEndsTheOperatorsOfAParallelizedModule) {
  expect_all_passed(run_ranks(changed_plan_of_one));
}

TEST(ChangedPlans, APlanMayBeExtendedByAnotherCall) { expect_all_passed(run_ranks(extended_plan)); }

}  // namespace
}  // namespace lockstep::testing::changed_plans_test
