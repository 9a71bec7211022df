// SPDX-License-Identifier: BSD-3-Clause
// fully_shard(): the bits of DistributedDataParallel, with shared and with gathered parameters.
#include <csignal>
#include <limits>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/grad_scaler.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/error_of.h"
#include "support/odd_net.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::AdamW;

FSDPModule shard(const OddNet& net, const FullyShardOptions& options) {
  for (const auto& child : net->children_to_shard()) fully_shard(*child, options);
  return fully_shard(net.ptr(), options);
}

Tensor draw_tokens(int step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
  return torch::randint(11, {2, 4});
}

Tensor rows_of(const Tensor& whole, int rank, int ranks) {
  const auto chunk = (whole.size(0) + ranks - 1) / ranks;
  const auto first = std::min(rank * chunk, whole.size(0));
  return whole.detach().narrow(0, first, std::min(chunk, whole.size(0) - first));
}

// `rank` has the rank-th part of the rows.
void expect_same(const FSDPModule& ours, const OddNet& net, const OddNet& expected, int rank, int ranks) {
  const auto shards = ours.named_parameters();
  const auto whole = net->parameters(), reference = expected->parameters();
  ASSERT_EQ(shards.size(), reference.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    SCOPED_TRACE(shards[i].name);
    const auto rows = [&](const Tensor& each) { return rows_of(each, rank, ranks); };
    EXPECT_TRUE(shards[i].parameter.detach().equal(rows(reference[i])));
    EXPECT_TRUE(whole[i].detach().equal(reference[i].detach()));
    const auto gradient = shards[i].parameter.grad(), expected_gradient = reference[i].grad();
    ASSERT_EQ(gradient.defined(), expected_gradient.defined());
    EXPECT_TRUE(!gradient.defined() || gradient.equal(rows(expected_gradient)));
  }
}

void compare_with_ddp(const Context& context, const FullyShardOptions& options) {
  OddNet plain, net;
  DistributedDataParallel<OddNet> ddp(plain, {.find_unused_parameters = true});
  AdamW reference(plain->parameters(), 1e-2);
  const auto sharded = shard(net, options);
  AdamW optimizer(sharded.parameters(), 1e-2);
  const auto ranks = options.mesh ? options.mesh->get_group("shard") : context.group();
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    const bool uses_all = step % 2 == 0;
    const auto tokens = draw_tokens(step, context.rank());
    reference.zero_grad();
    const auto expected = ddp->forward(tokens, uses_all);
    expected.backward();
    if (step % 2 == 0) {
      optimizer.zero_grad();
      net->zero_grad();
    } else {
      net->zero_grad();
    }
    const auto loss = net->forward(tokens, uses_all);
    EXPECT_TRUE(loss.equal(expected));
    loss.backward();
    reference.step();
    optimizer.step();
    expect_same(sharded, net, plain, ranks.rank(), ranks.size());
  }
}

const Scenario fsdp_like_ddp("fsdp_like_ddp", [] {
  const auto context = init({.backend = backend_under_test()});
  compare_with_ddp(context, {});
  compare_with_ddp(context, {.share_memory = false});
  compare_with_ddp(context, {.reshard_after_forward = false, .share_memory = false});
  if (context.world_size() == 4)
    compare_with_ddp(context, {.reshard_after_forward = 2, .share_memory = false});
  if (context.group().backend_name() == "hierarchical") {
    const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"replicate", "shard"}});
    compare_with_ddp(context, {.mesh = mesh, .share_memory = true});  // one copy a host
  }
});

class FullyShard : public EveryBackend {};
TEST_P(FullyShard, HasTheBitsOfDDP) { run(fsdp_like_ddp); }
// Gloo adds in another order for other sizes from three ranks on; beside PyTorch's,
// parity/fully_shard_test.cpp.
INSTANTIATE_TEST_SUITE_P(Gloo, FullyShard, ::testing::Values(std::tuple("gloo", 2)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Shm, FullyShard, ::testing::Values(std::tuple("shm", 2), std::tuple("shm", 4)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, FullyShard, two_hosts(2, 2), name_of_case);

TEST(FullyShardNumaNodes, HaveTheBitsOfDDP) {
  for (const std::vector<int>& nodes : {std::vector{0, 0, 1, 1}, {0, 1, 1, 0}})
    expect_all_passed(run_ranks(
        fsdp_like_ddp, {.world_size = 4, .env = {{kBackendVariable, "shm"}}, .rank_env = numa_nodes(nodes)}));
}

struct Step {
  OddNet net;
  FSDPModule sharded;
  AdamW optimizer;

  explicit Step(const FullyShardOptions& options = {})
      : sharded(shard(net, options)), optimizer(sharded.parameters(), 1e-2) {}
  void backward(const Context& context, int number = 0) {
    optimizer.zero_grad();
    net->forward(draw_tokens(number, context.rank()), true).backward();
  }
};

const Scenario mistakes("fsdp_mistakes", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    Step step({.share_memory = shared});
    EXPECT_EQ(step.sharded.shares_memory(), shared);
    torch::optim::SGD wrong(step.net->parameters(), 1e-2);
    step.backward(context);
    const auto names_the_call =
        AllOf(HasSubstr("fully_shard_test.cpp:"), HasSubstr("parameters() of the FSDPModule"));
    const auto no_gradients = AllOf(HasSubstr("have no gradients"), names_the_call);
    EXPECT_THAT(error_of([&] { wrong.step(); }),
                AllOf(HasSubstr("aten::add_ writes to a parameter"), names_the_call));
    optim::FusedAdamW fused(step.net->parameters(), 1e-2);
    EXPECT_THAT(error_of([&] { fused.step(); }), no_gradients);
    EXPECT_THAT(error_of([&] { torch::nn::utils::clip_grad_norm_(step.net->parameters(), 1.0); }),
                no_gradients);
    step.net->zero_grad(false);
    EXPECT_EQ(step.sharded.parameters()[0].grad().abs().sum().item<float>(), 0);
    step.backward(context, 1);
    step.optimizer.step();
  }
  torch::nn::Linear odd(3, 3);
  odd->register_parameter("scalar", torch::ones({}));
  EXPECT_THAT(error_of([&] { fully_shard(*odd); }),
              AllOf(HasSubstr("fully_shard_test.cpp:"), HasSubstr("parameter scalar is a scalar")));
  torch::nn::Linear mixed(3, 3);
  mixed->register_parameter("half", torch::ones({3}, at::kHalf));
  EXPECT_THAT(error_of([&] { fully_shard(*mixed); }), HasSubstr("parameter half has another dtype"));
  EXPECT_EQ(fully_shard(*mixed, {.ignored_params = {mixed->named_parameters()["half"]}}).parameters().size(),
            3);
});
TEST(FullyShardErrors, NameWhatToDo) { expect_all_passed(run_ranks(mistakes)); }

const Scenario no_shared_memory("fsdp_no_shared_memory", [] {
  const auto context = init({.backend = "gloo"});
  torch::nn::Linear net(3, 3);
  EXPECT_THAT(error_of([&] { fully_shard(*net, {.share_memory = true}); }),
              AllOf(HasSubstr("share_memory needs"), HasSubstr("is gloo")));
});
TEST(FullyShardErrors, NameTheBackendWithoutSharedMemory) { expect_all_passed(run_ranks(no_shared_memory)); }

void check_clipping(const Context& context, const std::optional<DeviceMesh>& mesh, int rank, int ranks) {
  for (const bool shared : {true, false}) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const double type : {2.0, 1.0, 0.5, 0.0, -1.0, kInfinity, -kInfinity}) {
      OddNet plain;
      DistributedDataParallel<OddNet> ddp(plain);
      ddp->forward(draw_tokens(0, context.rank()), true).backward();
      Step step({.mesh = mesh, .share_memory = shared});
      step.backward(context);
      const auto expected = clip_grad_norm_(ddp, 0.1, {.norm_type = type});
      const auto norm = clip_grad_norm_(step.sharded, 0.1, {.norm_type = type});
      // The smallest gradients are differences of larger numbers, and replicas are summed in another order.
      EXPECT_NEAR(norm, expected, (type < 0 ? 1e-4 : 1e-6) * expected);
      const auto bits = torch::full({1}, norm, at::kDouble), other = bits.clone();
      context.group().broadcast(other, 0);
      EXPECT_TRUE(bits.equal(other));
      const auto shards = step.sharded.parameters();
      for (std::size_t i = 0; i < shards.size(); ++i) {
        if (!shards[i].grad().defined()) continue;
        const auto rows = rows_of(plain->parameters()[i].grad(), rank, ranks);
        // The error of DDP's norm, which is of float32, and that of the sums, scaled or not.
        EXPECT_TRUE(shards[i].grad().allclose(rows, 2e-6, norm > 0.1 ? 1e-12 : 1e-9)) << type;
      }
      if (rank == 1) {
        for (const auto& shard : shards)
          if (shard.grad().defined() && shard.numel() > 0) shard.grad().fill_(std::nan(""));
      }
      const auto spoiled = clip_grad_norm_(step.sharded, 0.1, {.norm_type = type});
      EXPECT_TRUE(type == 0 || std::isnan(spoiled)) << type;
      EXPECT_THAT(error_of([&] { clip_grad_norm_(step.sharded, -0.1); }), HasSubstr("max_norm is -0.1"));
      const double other_norm = rank == 1 ? 0.2 : 0.1;
      EXPECT_THAT(error_of([&] { clip_grad_norm_(step.sharded, other_norm, {.norm_type = type}); }),
                  HasSubstr("pass the same on all ranks"));
    }
  }
}

const Scenario clipping("fsdp_clipping", [] {
  const auto context = init({.backend = "shm"});
  check_clipping(context, std::nullopt, context.rank(), context.world_size());
});
TEST(FullyShardClipping, HasTheNormOfAllShards) { expect_all_passed(run_ranks(clipping, {.world_size = 3})); }

const Scenario clipping_replicas("fsdp_clipping_replicas", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"replicate", "shard"}});
  check_clipping(context, mesh, mesh.get_local_rank("shard"), 2);
});
TEST(FullyShardClipping, CountsReplicasOnce) {
  expect_all_passed(run_ranks(clipping_replicas, {.world_size = 4}));
}

// Forward without backward reads the values of the last step, however the calls are mixed.
const Scenario evaluation("fsdp_evaluation", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    Step ours({.share_memory = shared});
    OddNet plain;
    DistributedDataParallel<OddNet> ddp(plain);
    AdamW reference(plain->parameters(), 1e-2);
    const auto evaluate = [&] {
      const torch::NoGradGuard no_grad;
      const auto tokens = draw_tokens(99, context.rank());
      EXPECT_TRUE(ours.net->forward(tokens, true).equal(plain->forward(tokens, true)));
    };
    for (int number = 0; number < 3; ++number) {
      evaluate();
      ours.backward(context, number);
      reference.zero_grad();
      ddp->forward(draw_tokens(number, context.rank()), true).backward();
      evaluate();
      if (shared) ours.sharded.reshard();
      ours.optimizer.step();
      reference.step();
      evaluate();
      evaluate();
    }
  }
});
TEST(FullyShardEvaluation, SeesEveryStep) { expect_all_passed(run_ranks(evaluation)); }

const Scenario exception("fsdp_exception", [] {
  const auto context = init({.backend = "shm"});
  for (const bool shared : {true, false}) {
    Step thrown({.share_memory = shared}), plain({.share_memory = shared});
    for (int number = 0; number < 2; ++number) {
      const auto hidden = thrown.net->embedding(draw_tokens(9, context.rank()));
      hidden.register_hook([](const Tensor&) { throw std::runtime_error("in backward"); });
      const auto loss =
          thrown.net->norm(thrown.net->twice(hidden.narrow(2, 0, 5)).repeat({1, 1, 2}).narrow(2, 0, 6));
      EXPECT_THROW(loss.sum().backward(), std::runtime_error);
      thrown.net->zero_grad();
      for (Step* step : {&thrown, &plain}) {
        step->backward(context, number);
        step->optimizer.step();
      }
      const auto left = thrown.sharded.parameters(), right = plain.sharded.parameters();
      for (std::size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(left[i].equal(right[i])) << i;
    }
  }
});
TEST(FullyShardException, LeavesNothingForTheNextStep) { expect_all_passed(run_ranks(exception)); }

// Only rank 1's rows have a gradient that is not finite.
const Scenario scaling("fsdp_scaling", [] {
  const auto context = init({.backend = "shm"});
  Step step;
  amp::GradScaler scaler(at::kCPU, {.init_scale = 1024, .process_group = context.group()});
  for (const bool overflows : {true, false}) {
    step.optimizer.zero_grad();
    scaler.scale(step.net->forward(draw_tokens(0, context.rank()), true)).backward();
    const auto shard = step.sharded.parameters()[1];
    const auto before = shard.detach().clone();
    if (overflows && context.rank() == 1) shard.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    scaler.step(step.optimizer);
    scaler.update();
    EXPECT_EQ(shard.detach().equal(before), overflows);
    EXPECT_EQ(scaler.get_scale(), 512);
  }
});
TEST(FullyShardScaling, SkipsAStepOnAllRanks) { expect_all_passed(run_ranks(scaling)); }

std::size_t bytes_of(const torch::nn::Module& module) {
  std::size_t bytes = 0;
  for (const auto& parameter : module.parameters()) bytes += parameter.storage().nbytes();
  return bytes;
}

const Scenario freeing("fsdp_freeing", [] {
  const auto context = init({.backend = "shm"});
  const FullyShardOptions options{.share_memory = false};
  OddNet net;
  const auto twice = fully_shard(*net->twice, options);
  for (const auto& child : net->children_to_shard()) {
    if (child != net->twice.ptr()) fully_shard(*child, options);
  }
  const auto sharded = fully_shard(*net, options);
  EXPECT_EQ(bytes_of(*net), 0);
  twice.unshard();
  EXPECT_EQ(bytes_of(*net->twice), 30 * sizeof(float));
  (void)net->frozen->forward(torch::ones({2, 5}));
  EXPECT_EQ(bytes_of(*net->twice), 30 * sizeof(float)) << "after an operator on another group";
  EXPECT_EQ(net->twice->weight.data_ptr<float>()[0], OddNet()->twice->weight.data_ptr<float>()[0]);
  twice.reshard();
  EXPECT_EQ(bytes_of(*net->twice), 0);
  twice.unshard_async().wait();
  (void)net->frozen->forward(torch::ones({2, 5}));
  EXPECT_EQ(bytes_of(*net->twice), 30 * sizeof(float));
  twice.reshard();
  for (int number = 0; number < 3; ++number) {
    const auto loss = net->forward(draw_tokens(number, context.rank()), true);
    EXPECT_EQ(bytes_of(*net->twice), 0);
    EXPECT_GT(bytes_of(*net->lstm), 0);                       // its views have no guards
    EXPECT_GT(net->embedding->weight.storage().nbytes(), 0);  // the outermost module's
    loss.backward();
    EXPECT_EQ(bytes_of(*net), 0);
  }
});
TEST(FullyShardFreeing, LeavesNothingGathered) { expect_all_passed(run_ranks(freeing)); }

const Scenario lost("fsdp_lost", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  Step step;
  for (int number = 0; number < 3; ++number) {
    step.backward(context, number);
    step.optimizer.step();
  }
  if (context.rank() == 1) ::raise(SIGKILL);
  const auto forward = [&] { step.backward(context, 3); };
  EXPECT_THAT(error_of<PeerLost>(forward),
              AllOf(HasSubstr("fully_shard_test.cpp:"), HasSubstr("rank 1 (pid "), HasSubstr("is dead")));
  const auto mixed = AllOf(HasSubstr("values of two steps"), HasSubstr("rank 1 (pid "),
                           HasSubstr("load the last checkpoint"));
  EXPECT_THAT(error_of(forward), mixed);
  EXPECT_THAT(error_of([&] { get_model_state_dict(step.sharded); }), mixed);
  EXPECT_THAT(error_of<std::exception>([&] {
                std::ostringstream file;
                torch::save(step.net, file);
              }),
              mixed);
  EXPECT_THAT(error_of<std::exception>([&] { (void)(step.sharded.parameters()[0] + 1); }), mixed);
});
TEST(FullyShardLostRank, MakesSharedParametersUnusable) {
  const auto results = run_ranks(lost, {.world_size = 3});
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].out << results[0].err;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].out << results[2].err;
}

// Destroyed modules free their shared memory.
const Scenario rounds("fsdp_rounds", [] {
  const auto context = init({.backend = "shm"});
  std::set<const void*> places;
  for (int round = 0; round < 12; ++round) {
    Step step;
    step.backward(context);
    step.optimizer.step();
    places.insert(step.sharded.parameters()[0].data_ptr());
    context.barrier();
  }
  EXPECT_LE(places.size(), 4);
});
TEST(FullyShardRounds, ReuseTheMemoryOfDestroyedModules) { expect_all_passed(run_ranks(rounds)); }

}  // namespace
}  // namespace lockstep::testing
