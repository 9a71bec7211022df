// SPDX-License-Identifier: BSD-3-Clause
// ZeroRedundancyOptimizer::share_parameters(): where the parameters lie, and what is refused.
#include <chrono>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

// Whether a write of one rank is seen by the other.
bool is_in_one_memory(const Context& context, const Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  context.barrier();
  if (context.is_main_process()) parameter.fill_(42);
  context.barrier();
  return parameter.eq(42).all().item<bool>();
}

const Scenario zero_one_memory("zero one memory", [] {
  const auto context = init({.backend = "shm"});
  const auto first = torch::full({3, 2}, 1.0 + context.rank()).t().contiguous().t().requires_grad_();
  const auto second = torch::full({5}, 1.0 + context.rank()).requires_grad_();
  ZeroRedundancyOptimizer<SGD> optimizer({first, second}, SGDOptions(0.5));
  EXPECT_FALSE(is_in_one_memory(context, second) && !context.is_main_process());
  optimizer.share_parameters();
  EXPECT_EQ(first.stride(0), 1);
  EXPECT_TRUE(first.eq(1 + optimizer.owners()[0]).all().item<bool>()) << first;
  const auto product = (first * first).sum() + (second * second).sum();
  for (const auto& each : {first, second}) each.mutable_grad() = torch::ones_like(each);
  optimizer.step();
  EXPECT_TRUE(first.eq(0.5 + optimizer.owners()[0]).all().item<bool>()) << first;
  // Also on the rank that did not write.
  EXPECT_THAT(error_of<c10::Error>([&] { product.backward(); }),
              HasSubstr("modified by an inplace operation"));
  EXPECT_TRUE(is_in_one_memory(context, first));
  EXPECT_TRUE(is_in_one_memory(context, second));
  const auto added = torch::ones({4}).requires_grad_();
  optimizer.add_param_group(OptimizerParamGroup({added}));
  added.mutable_grad() = torch::ones_like(added);
  EXPECT_EQ(optimizer.owners().size(), 3U);
  optimizer.step();
  EXPECT_TRUE(added.eq(0.5).all().item<bool>());
  EXPECT_TRUE(is_in_one_memory(context, added));
  // The memory of a parameter is replaced on one rank.
  if (context.is_main_process()) second.set_data(torch::full({5}, 8.0));
  EXPECT_THAT(error_of<Error>([&] { optimizer.step(); }), HasSubstr("call share_parameters() again"));
  optimizer.share_parameters();
  EXPECT_TRUE(is_in_one_memory(context, second));
  EXPECT_TRUE(is_in_one_memory(context, first));
  optimizer.step();
  const auto gloo = context.new_group({0, 1}, {.backend = "gloo"});
  ZeroRedundancyOptimizer<SGD> other({added}, SGDOptions(0.5), gloo);
  EXPECT_THAT(error_of<ArgumentError>([&] { other.share_parameters(); }),
              AllOf(HasSubstr("zero_shared_memory_test.cpp:"), HasSubstr("needs a group of backend shm"),
                    HasSubstr("gloo")));
});
TEST(ZeroSharedMemory, SharedParametersAreInOneMemory) { expect_all_passed(run_ranks(zero_one_memory)); }

// Rank 1 dies when the other one may have changed its parameters.
const Scenario zero_lost("zero lost rank", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  const auto first = torch::ones({3}).requires_grad_(), second = torch::ones({3}).requires_grad_();
  ZeroRedundancyOptimizer<SGD> optimizer({first, second}, SGDOptions(0.5));
  optimizer.share_parameters();
  for (const auto& each : {first, second}) each.mutable_grad() = torch::ones_like(each);
  optimizer.step();
  const auto dies = [&]() -> Tensor {
    if (!context.is_main_process()) ::raise(SIGKILL);
    return {};
  };
  EXPECT_THAT(error_of<PeerLost>([&] { optimizer.step(dies); }), HasSubstr("rank 1 (pid "));
  for (const auto& each : {first, second})
    EXPECT_THAT(error_of<std::exception>([&] { (void)(each + 1); }),
                AllOf(HasSubstr("values of two steps"), HasSubstr("rank 1 (pid ")));
});
TEST(ZeroSharedMemory, ALostRankMakesParametersUnusable) {
  const auto results = run_ranks(zero_lost);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
  EXPECT_EQ(results[1].signal, SIGKILL);
}

const Scenario zero_of_parts("zero of tensor parallel parts", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 1}, {.mesh_dim_names = {"dp", "tp"}});
  torch::nn::Sequential net(torch::nn::Linear(4, 4));
  tensor_parallel::parallelize_module(*net, mesh["tp"], {{"0", tensor_parallel::ColwiseParallel()}});
  ZeroRedundancyOptimizer<SGD> optimizer(net->parameters(), SGDOptions(0.5), mesh["dp"].get_group());
  EXPECT_THAT(error_of<ArgumentError>([&] { optimizer.share_parameters(); }),
              HasSubstr("does not take parameters of parallelize_module()"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                DistributedDataParallel<torch::nn::Sequential>(
                    net, {.process_group = mesh["dp"].get_group(),
                          .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
              }),
              HasSubstr("mixed_precision does not take parameters of parallelize_module()"));
});
TEST(ZeroSharedMemory, ParametersWithGuardsKeepTheirMemory) { expect_all_passed(run_ranks(zero_of_parts)); }

const Scenario zero_of_rows("zero of rows", [] {
  const auto context = init({.backend = "shm"});
  torch::nn::Linear net(4, 4);
  const auto rows = fully_shard(net).parameters();
  EXPECT_THAT(error_of<ArgumentError>([&] { ZeroRedundancyOptimizer<SGD>(rows, SGDOptions(0.5)); }),
              AllOf(HasSubstr("zero_shared_memory_test.cpp:"),
                    HasSubstr("is one of fully_shard(), which divides the states")));
});
TEST(ZeroSharedMemory, RowsOfFullyShardAreRefused) { expect_all_passed(run_ranks(zero_of_rows)); }

}  // namespace
}  // namespace lockstep::testing
