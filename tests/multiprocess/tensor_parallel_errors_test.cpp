// SPDX-License-Identifier: BSD-3-Clause
// What parallelize_module() and its layers refuse, alike on all ranks.
#include <chrono>
#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "multiprocess/expect_told.h"
#include "support/error_of.h"
#include "support/parallel_net.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor::parallel;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Scenario refused_on_one("tensor parallel refused on one rank", [] {
  const auto context = init();
  const auto mesh = init_device_mesh({2});
  const bool odd = context.rank() == 1;
  const auto expect_told = [&](const std::function<void()>& call, const char* reason) {
    testing::expect_told<ArgumentError>(context, call, reason);
  };
  const auto expect_differ = [&](const std::function<void()>& call, const char* what) {
    EXPECT_THAT(error_of<DesyncError>(call), AllOf(HasSubstr("rank 1 has"), HasSubstr(what)));
  };
  const tp::ParallelStyle style = tp::ColwiseParallel();
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto before = net->named_parameters()["0.weight"].detach().clone();
  const auto plan = [&](const tp::ParallelizePlan& of_rank) { tp::parallelize_module(*net, mesh, of_rank); };
  expect_told([&] { plan({{odd ? "7" : "0", style}}); }, "\"7\"");
  expect_told(
      [&] {
        plan({{"0", odd ? tp::ColwiseParallel{.input_layouts = tp::Partial()} : style}});
      },
      "can be Partial()");
  // The second layer's, after the first one would be cut.
  auto weight = net->named_parameters()["1.weight"];
  if (odd) weight.mutable_grad() = torch::ones({4, 4});
  expect_told([&] { plan({{"*", style}}); }, "1.weight has a gradient");
  weight.mutable_grad().reset();
  expect_differ([&] { plan({{odd ? "1" : "0", style}}); }, "\"1\": ColwiseParallel");
  expect_differ(
      [&] {
        plan({{"0", odd ? tp::ColwiseParallel{.output_layouts = tp::Replicate()} : style}});
      },
      "output_layouts=Replicate()");
  torch::nn::Linear other(odd ? 6 : 4, 4);
  expect_differ([&] { tp::parallelize_module(*other, mesh, {{"", style}}); }, "parameter weight Float[4, 6]");
  expect_differ([&] { tp::ColumnParallelLinear layer(torch::nn::LinearOptions(4, 4).bias(odd), mesh); },
                "bias=true");
  expect_told(
      [&] {
        auto options = torch::nn::EmbeddingOptions(4, 4);
        if (odd) options.max_norm(1);
        const auto layer = std::make_shared<tp::VocabParallelEmbeddingImpl>(options, mesh);
      },
      "leave max_norm out");
  torch::nn::Sequential masked(torch::nn::Linear(4, 4));
  masked[0]->register_buffer("mask", torch::ones({1}).expand({4}));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                tp::parallelize_module(*masked, mesh, {{"0", style}});
              }),
              AllOf(HasSubstr("0.mask"), HasSubstr("several elements in one place")));
  EXPECT_EQ(masked->named_parameters()["0.weight"].size(0), 4);
  if (odd) masked->named_buffers()["0.mask"].set_data(torch::ones({4}));
  expect_differ([&] { tp::parallelize_module(*masked, mesh, {{"0", style}}); }, "buffer 0.mask");
  // What was refused has changed nothing.
  EXPECT_TRUE(net->named_parameters()["0.weight"].equal(before));
  plan({{"*", style}});
  EXPECT_EQ(net->named_parameters()["1.weight"].size(0), 2);
});
TEST(TensorParallel, ARefusalOnOneRankIsAnErrorOnAll) {
  expect_all_passed(run_ranks(refused_on_one, {.timeout = std::chrono::seconds(30)}));
}

const Scenario errors("tensor_parallel_errors", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2});
  const auto plan_error = [&](const tp::ParallelizePlan& plan) {
    ParallelNet net;
    return error_of<ArgumentError>([&] { tp::parallelize_module(*net, mesh, plan); });
  };
  EXPECT_THAT(plan_error({{"layers.*.fc3", tp::ColwiseParallel()}}),
              AllOf(HasSubstr("\"layers.*.fc3\""), HasSubstr("layers.0.fc1"),
                    HasSubstr("tensor_parallel_errors_test")));
  EXPECT_THAT(plan_error({{"norm", tp::ColwiseParallel()}}),
              AllOf(HasSubstr("\"norm\""), HasSubstr("Linear")));
  EXPECT_THAT(plan_error({{"head", tp::ColwiseParallel()}, {"head", tp::RowwiseParallel()}}),
              HasSubstr("head.weight is already in a plan"));
  EXPECT_THAT(error_of([&] { tp::local_heads(3, mesh); }), HasSubstr("3 heads"));
  EXPECT_THAT(plan_error({{"layers.*.fc2", tp::RowwiseParallel{.output_layouts = tp::Shard(-1)}}}),
              AllOf(HasSubstr("fc2.bias"), HasSubstr("leave the bias out")));

  ParallelNet net;
  tp::parallelize_module(*net, mesh, tensor_plan());
  const auto& weight = net->head->weight;
  EXPECT_THAT(error_of([&] { weight.norm(); }), AllOf(HasSubstr("head.weight"), HasSubstr("detach()")));
  EXPECT_THAT(error_of([&] { torch::randn({4, 14}).matmul(weight); }), HasSubstr("aten::matmul"));
  EXPECT_THAT(error_of([&] {
                net->layers[0]->as<ParallelBlock>()->fc2->forward(torch::ones({2, 64}));
              }),
              AllOf(HasSubstr("layers.0.fc2.weight"), HasSubstr("input_layouts")));
  EXPECT_EQ(weight.detach().norm().dim(), 0);
  net->to(torch::kFloat);
  EXPECT_THAT(error_of([&] { net->to(torch::kDouble); }), HasSubstr("before parallelize_module()"));

  tp::parallelize_module(*net, mesh, {{"norm", tp::SequenceParallel()}});
  EXPECT_THAT(error_of([&] { tp::redistribute(torch::ones({3}), mesh, tp::Replicate(), tp::Shard(0)); }),
              HasSubstr("equally"));
});
TEST(TensorParallel, ErrorsNameWhatIsWrong) { expect_all_passed(run_ranks(errors)); }

}  // namespace
}  // namespace lockstep::testing
