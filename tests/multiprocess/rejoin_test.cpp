// SPDX-License-Identifier: BSD-3-Clause
// Copies of a group, wrappers and layers after the group has been formed again in place of a lost rank.

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/comm_hooks.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/nn/data_parallel.h>
#include <lockstep/nn/mixture_of_experts.h>
#include <lockstep/nn/swa_utils.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "comm/group_state.h"
#include "comm/peer_check.h"
#include "modules/bucket_order.h"
#include "multiprocess/reconfigure.h"
#include "support/error_of.h"

namespace lockstep::rejoin_test {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int kVictim = 1;
constexpr int kFresh = 3;  // the process in its place
// What this rank publishes, and the segments and heaps of the present ranks: none of a former group.
constexpr std::size_t kMemoriesOfThree = 1 + 2 * 3;

Context init_process() { return own_process() == kFresh ? init_for_later() : init_among(3); }

void form_in_place(const ProcessGroup& group, const std::vector<int>& processes, std::int64_t uuid) {
  comm::replace(group, group.reconfigure({.uuid = uuid, .handles = handles_of(processes, group, uuid)}));
}

void expect_equal_on_all_ranks(const torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& each : tensors) {
      const auto least = each.value().detach().clone();
      const auto greatest = least.clone();
      group.all_reduce(least, ReduceOp::MIN);
      group.all_reduce(greatest, ReduceOp::MAX);
      EXPECT_TRUE(least.equal(greatest)) << each.key();
    }
  }
}

// -- copies

const testing::Scenario follows("rejoin: copies of a group", [] {
  const auto context = init_process();
  const auto copy = context.group();
  if (own_process() != kFresh) {
    const auto memory = registered(copy, 300'000);
    expect_sums(copy, memory);
    wait_for({0, 1, 2}, "sums");
    if (own_process() == kVictim) ::raise(SIGKILL);
    EXPECT_THROW(copy.all_reduce(memory), PeerLost);
    EXPECT_TRUE(comm::has_lost_rank(copy, 10s));
  }
  form_in_place(copy, {0, kFresh, 2}, 1);
  EXPECT_FALSE(comm::has_lost_rank(copy, 0ms));
  EXPECT_EQ(&comm::state_of(copy), &comm::state_of(context.group()));
  EXPECT_EQ(context.group().rank(), own_process() == kFresh ? 1 : own_process());
  expect_sums(context.group(), registered(copy, 1000));
  const std::weak_ptr<comm::GroupState> second = comm::present_state(context.group());
  const auto later = copy;
  form_in_place(later, {2, 0, kFresh}, 2);
  EXPECT_TRUE(second.expired());
  form_in_place(copy, {kFresh, 2, 0}, 3);
  for (const auto& group : {context.group(), copy, later}) {
    EXPECT_EQ(group.rank(), own_process() == kFresh ? 0 : own_process() == 2 ? 1 : 2);
    group.barrier();
  }
  EXPECT_EQ(later.recent_calls().size(), 3U);
  EXPECT_EQ(shared_memories(), kMemoriesOfThree);
  // A rank that has left to form the group again is lost to the others, whatever made it leave.
  if (copy.rank() == 0) {
    wait_for({0, 2, kFresh}, "nothing");
    form_in_place(copy, {kFresh}, 5);
    copy.barrier();
  } else {
    EXPECT_FALSE(comm::has_lost_rank(copy, 0ms));
    wait_for({0, 2, kFresh}, "nothing");
    EXPECT_TRUE(comm::has_lost_rank(copy, 10s));
    EXPECT_THROW(copy.barrier(), PeerLost);
  }
});

class Rejoin : public testing::ReconfigureTest {};
INSTANTIATE_TEST_SUITE_P(Shm, Rejoin, ::testing::Values("shm"));

TEST_P(Rejoin, CopiesOfAGroupFollow) { run_with_victims(follows, 4, {kVictim}); }

// -- training

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", Linear(8, 16))),
        norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(16)))),
        last(register_module("last", Linear(16, 4))) {}
  at::Tensor forward(const at::Tensor& input) { return last(norm(torch::relu(first(input)))); }

  Linear first;
  SyncBatchNorm norm;
  Linear last;
};

DistributedDataParallelOptions options_under_test() {
  const auto name = Env().get("TEST_OPTION").value();
  DistributedDataParallelOptions options{.broadcast_buffers = false, .bucket_cap_mb = 0.0001};
  options.find_unused_parameters = name == "find_unused_parameters";
  options.static_graph = name == "static_graph";
  if (name == "mixed_precision") options.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16};
  if (name == "delay_all_reduce_named_params") {
    options.delay_all_reduce_named_params = {"last.bias"};
    options.param_to_hook_all_reduce = "first.weight";
  }
  return options;
}

const testing::Scenario trains_on("rejoin: training", [] {
  const auto context = init_process();
  if (own_process() == kFresh) form_in_place(context.group(), {kFresh}, 100);  // wrappers may need a group
  torch::manual_seed(own_process());
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, options_under_test());
  if (Env().get("TEST_OPTION") == "hook") ddp->register_comm_hook(bf16_compress_hook);
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  const auto weight = net->first->weight;
  const auto* const place = weight.data_ptr();
  nn::require_can_rejoin(*ddp);
  const auto step = [&](int number) {
    optimizer.zero_grad();
    torch::manual_seed(100 * number + context.group().rank());
    ddp->forward(torch::randn({5, 8})).to(at::kFloat).pow(2).mean().backward();
    optimizer.step();
  };
  if (own_process() != kFresh) {
    for (int number = 0; number < 3; ++number) step(number);
    wait_for({0, 1, 2}, "steps");
    if (own_process() == kVictim)
      weight.register_hook([](const at::Tensor& gradient) {
        ::raise(SIGKILL);  // when the later layers' buckets are under way
        return gradient;
      });
    EXPECT_THROW(
        {
          const auto local =
              Env().get("TEST_OPTION") == "no_sync" ? std::optional(ddp->no_sync()) : std::nullopt;
          step(3);
          step(4);  // without reductions, step 3 does not need the lost rank any more
        },
        PeerLost);
    EXPECT_TRUE(comm::has_lost_rank(context.group(), 10s));
  }
  form_in_place(context.group(), {0, kFresh, 2}, 1);
  nn::rejoin(*ddp);
  EXPECT_EQ(weight.data_ptr(), place);
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
  for (const auto& parameter : ddp->parameters()) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(shared_memories(), kMemoriesOfThree);
  EXPECT_EQ(ddp->stats().steps, 0);
  broadcast_module(*net, 2);  // as an elastic run restores the values
  const auto before = net->first->weight.detach().clone();
  for (int number = 5; number < 9; ++number) step(number);
  EXPECT_TRUE(ddp->has_averaged_gradients());
  EXPECT_FALSE(before.equal(net->first->weight));
  EXPECT_EQ(ddp->stats().steps, 4);
  expect_equal_on_all_ranks(*net, context.group());
  context.barrier();
});

TEST_P(Rejoin, TrainingGoesOnWithAFreshProcess) {
  for (const auto* option : {"none", "hook", "mixed_precision", "static_graph", "find_unused_parameters",
                             "delay_all_reduce_named_params", "no_sync"}) {
    SCOPED_TRACE(option);
    run_with_victims(trains_on, 4, {kVictim}, {{"TEST_OPTION", option}});
  }
}

// A rank dies before it rejoins, and the program has kept a graph from before the first death.
const testing::Scenario fails_once("rejoin: fails once", [] {
  const auto context = init_process();
  if (own_process() == kFresh) form_in_place(context.group(), {kFresh}, 100);
  Sequential net(Linear(8, 16), Linear(16, 4));
  DistributedDataParallel ddp(net, {.find_unused_parameters = true});
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  const auto loss = [&] { return ddp->forward(torch::rand({5, 8})).pow(2).mean(); };
  std::optional<at::Tensor> kept;
  if (own_process() != kFresh) {
    kept = loss();
    wait_for({0, 1, 2}, "forward");
    if (own_process() == kVictim) ::raise(SIGKILL);
    EXPECT_THROW(loss().backward(), PeerLost);
  }
  form_in_place(context.group(), {0, kFresh, 2}, 1);
  if (own_process() == kFresh) ::raise(SIGKILL);
  EXPECT_THROW(nn::rejoin(*ddp), PeerLost);
  EXPECT_TRUE(comm::has_lost_rank(context.group(), 10s));
  EXPECT_THAT(error_of<Error>([&] { loss(); }),
              HasSubstr("rejoin() has failed, so the ranks cannot continue"));
  form_in_place(context.group(), {2, 0}, 2);
  nn::rejoin(*ddp);
  kept->backward();
  EXPECT_FALSE(ddp->has_averaged_gradients());
  for (int number = 0; number < 3; ++number) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  EXPECT_TRUE(ddp->has_averaged_gradients());
  expect_equal_on_all_ranks(*net, context.group());
});

TEST_P(Rejoin, CanBeTriedAgain) { run_with_victims(fails_once, 4, {kVictim, kFresh}); }

// -- the order of buckets

// The layer that is registered first runs last.
struct SwappedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return first(second(input)); }
  Linear first = register_module("first", Linear(4, 4));
  Linear second = register_module("second", Linear(4, 4));
};
TORCH_MODULE(Swapped);

const testing::Scenario keeps_order("rejoin: order of buckets", [] {
  const auto context = init_among(2);
  Swapped net;
  DistributedDataParallel ddp(net);
  const auto step = [&] { ddp->forward(torch::ones({2, 4})).sum().backward(); };
  const auto names = [&] { return ddp->buckets().front().parameters; };
  const auto constructed = names();
  EXPECT_THAT(ddp::BucketOrder::of(*ddp), IsEmpty());
  step();
  const auto order = ddp::BucketOrder::of(*ddp);
  step();
  const auto rebuilt = names();
  EXPECT_NE(rebuilt, constructed);

  nn::rejoin(*ddp);
  ddp::BucketOrder::restore(*ddp, order);
  EXPECT_EQ(names(), constructed);
  step();
  EXPECT_EQ(names(), rebuilt);
  EXPECT_EQ(ddp::BucketOrder::of(*ddp), order);

  net->second->bias.set_requires_grad(false);
  nn::rejoin(*ddp);
  ddp::BucketOrder::restore(*ddp, order);
  EXPECT_THAT(ddp::BucketOrder::of(*ddp), IsEmpty());  // the order is that of other parameters
  step();
  const auto without_bias = ddp::BucketOrder::of(*ddp);
  EXPECT_THAT(without_bias, SizeIs(4));

  net->second->bias.set_requires_grad(true);
  net->first->bias.set_requires_grad(false);  // as many parameters
  nn::rejoin(*ddp);
  ddp::BucketOrder::restore(*ddp, without_bias);
  EXPECT_THAT(ddp::BucketOrder::of(*ddp), IsEmpty());
});

TEST(RejoinBuckets, TakeTheOrderOfTheSameParameters) {
  const testing::TempFolder folder;
  testing::expect_all_passed(testing::run_ranks(keeps_order, {.env = environment("shm", folder)}));
}

// -- what cannot rejoin

std::string refusal(const torch::nn::Module& module) {
  return error_of<ArgumentError>([&] { nn::require_can_rejoin(module); });
}

const testing::Scenario refuses("rejoin: refusals", [] {
  const auto context = init_among(2);
  const auto mesh = init_device_mesh({2});
  const auto two_linears = [] { return Sequential(Linear(4, 8), Linear(8, 4)); };
  const auto hooked = [&](const CommHook& hook) {
    DistributedDataParallel ddp(two_linears());
    ddp->register_comm_hook(hook);
    return torch::nn::ModuleList(ddp.ptr());
  };
  EXPECT_EQ(refusal(*hooked(allreduce_hook)), "");
  for (const auto& hook : {CommHook(PowerSGD()), fp16_compress_wrapper(allreduce_hook)})
    EXPECT_THAT(refusal(*hooked(hook)), HasSubstr("use a plain function such as bf16_compress_hook"));
  DistributedDataParallel hooked_later(two_linears());
  hooked_later->register_comm_hook(PowerSGD());
  EXPECT_THAT(error_of<ArgumentError>([&] { nn::rejoin(*hooked_later); }), HasSubstr("a communication hook"));

  const auto parts = context.new_group({0, 1});
  EXPECT_THAT(refusal(*DistributedDataParallel(two_linears(), {.process_group = parts})),
              HasSubstr("leave out process_group"));
  EXPECT_THAT(refusal(*SyncBatchNorm(torch::nn::BatchNormOptions(4), parts)),
              HasSubstr("leave out the group"));
  EXPECT_EQ(refusal(*SyncBatchNorm(torch::nn::BatchNormOptions(4), context.group())), "");
  DistributedDataParallel steps_early(
      two_linears(), {.optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
      }});
  EXPECT_THAT(refusal(*steps_early),
              HasSubstr("does not support optimizer_in_backward: its optimizers keep"));
  {
    DistributedDataParallel ddp(two_linears());
    const auto join = ddp->join();
    EXPECT_THAT(refusal(*ddp), HasSubstr("join() around it"));
  }
  EXPECT_EQ(refusal(*DataParallel(two_linears())), "DataParallel cannot be part of an elastic run yet");
  EXPECT_EQ(refusal(*optim::AveragedModel(two_linears())), "");

  auto sharded = two_linears();
  fully_shard(*sharded, {.mesh = mesh});
  EXPECT_THAT(refusal(*sharded), HasSubstr("0.weight of fully_shard() cannot be part"));
  auto parallel = two_linears();
  tensor_parallel::parallelize_module(*parallel, mesh, {{"0", tensor_parallel::ColwiseParallel()}});
  EXPECT_THAT(refusal(*parallel), HasSubstr("0.weight of parallelize_module() cannot be part"));
  MixtureOfExperts experts({.dim = 4, .num_experts = 2, .mesh = mesh}, [] { return Expert(Linear(4, 4)); });
  EXPECT_THAT(refusal(*experts),
              HasSubstr(fmt::format("experts.{}.weight of MixtureOfExperts", context.rank())));
});

TEST(RejoinErrors, SayWhatCannotRejoin) {
  const testing::TempFolder folder;
  testing::expect_all_passed(testing::run_ranks(refuses, {.env = environment("shm", folder)}));
}

}  // namespace
}  // namespace lockstep::rejoin_test
