// SPDX-License-Identifier: BSD-3-Clause
// The backend hierarchical, with hosts that LOCKSTEP_HOST_ID makes of one.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "multiprocess/backends.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

at::Tensor numbers_of(int rank, std::int64_t count) {
  const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank + 1));
  return torch::randn({count}, generator);
}

// Each host in the order of its ranks, then the hosts.
at::Tensor sum_in_order(const std::vector<std::vector<int>>& hosts, std::int64_t count) {
  std::vector<at::Tensor> sums;
  for (const auto& ranks : hosts) {
    auto sum = numbers_of(ranks.front(), count);
    for (std::size_t i = 1; i < ranks.size(); ++i) sum = sum + numbers_of(ranks[i], count);
    sums.push_back(sum);
  }
  return sums.size() == 1 ? sums[0] : sums[0] + sums[1];
}

// Small, in lanes, and in several chunks, which the last element does not fill.
void expect_sums(const Context& context, const std::vector<std::vector<int>>& hosts) {
  for (const std::int64_t count : {0, 1, 1000, 30'001, 3'000'001}) {
    const auto expected = sum_in_order(hosts, count);
    auto tensor = numbers_of(context.rank(), count);
    context.group().all_reduce(tensor);
    EXPECT_TRUE(torch::equal(tensor, expected)) << count;
    tensor = numbers_of(context.rank(), count);
    const auto work = context.group().all_reduce_async(tensor, ReduceOp::AVG);
    Work(work).wait();
    EXPECT_TRUE(torch::equal(tensor, expected / context.world_size())) << count;
  }
}

const Scenario even("sums over even hosts", [] {
  const auto context = init();
  EXPECT_EQ(context.group().backend_name(), "hierarchical");
  expect_sums(context, {{0, 1}, {2, 3}});
});
const Scenario uneven("sums over uneven hosts", [] { expect_sums(init(), {{0, 1, 2}, {3, 4}}); });

// Ranks of both hosts take turns.
const Scenario alternating("sums over hosts with alternating ranks", [] {
  expect_sums(init(), {{0, 2}, {1, 3}});
});

// The gradients of a step are the mean in the documented order.
const Scenario ddp_step("a step of DDP over hosts", [] {
  const auto context = init();
  torch::manual_seed(3);
  const auto make_net = [] {
    return torch::nn::Sequential(torch::nn::Linear(300, 400), torch::nn::ReLU(), torch::nn::Linear(400, 5));
  };
  auto net = make_net();
  const auto gradients_of = [&](int rank, auto& model) {
    net->zero_grad();
    model->forward(numbers_of(rank, 8 * 300).view({8, 300})).square().mean().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
    return gradients;
  };
  std::vector<std::vector<at::Tensor>> of_rank;
  for (int rank = 0; rank < 4; ++rank) of_rank.push_back(gradients_of(rank, net));
  DistributedDataParallel ddp(net);
  const auto reduced = gradients_of(context.rank(), ddp);
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    // DDP divides before it sums, as Python's does.
    const auto part = [&](std::size_t rank) { return of_rank[rank][i] / 4; };
    EXPECT_TRUE(torch::equal(reduced[i], (part(0) + part(1)) + (part(2) + part(3)))) << i;
  }
});

const Scenario one_dies("a rank dies on the second host", [] {
  const auto context = init({.timeout = 20s});
  context.barrier();
  if (context.rank() == 3) ::raise(SIGKILL);
  auto x = torch::ones({100'000});
  context.group().all_reduce(x);
});

class Hosts : public ::testing::Test {
 protected:
  static std::vector<RankResult> run(const Scenario& scenario, const std::vector<int>& host_of) {
    const auto size = static_cast<int>(host_of.size());
    RunOptions options{.world_size = size, .timeout = 60s};
    for (int rank = 0; rank < size; ++rank) {
      options.rank_env[rank] = {
          {"GLOO_SOCKET_IFNAME", "lo"},
          {"LOCKSTEP_HOST_ID", std::to_string(host_of[static_cast<std::size_t>(rank)])}};
    }
    return run_ranks(scenario, options);
  }
};

TEST_F(Hosts, ArePickedByAutoAndSumInTheDocumentedOrder) {
  const auto results = run(even, {0, 0, 1, 1});
  expect_all_passed(results);
  EXPECT_THAT(
      results[0].err,
      HasSubstr("backend hierarchical for 4 ranks: shared memory on each host, gloo between the hosts"));
}
TEST_F(Hosts, MayDifferInTheirNumberOfRanks) { expect_all_passed(run(uneven, {0, 0, 0, 1, 1})); }
TEST_F(Hosts, MayAlternate) { expect_all_passed(run(alternating, {0, 1, 0, 1})); }
TEST_F(Hosts, ReduceTheGradientsOfDdp) { expect_all_passed(run(ddp_step, {0, 0, 1, 1})); }

TEST_F(Hosts, AllReportARankThatDiesOnOneOfThem) {
  const auto results = run(one_dies, {0, 0, 1, 1});
  EXPECT_EQ(results[3].signal, SIGKILL);
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].err, AllOf(HasSubstr("all_reduce #2 of Float[100000] at hosts_test.cpp:"),
                                         HasSubstr("another rank is gone")));
  }
  EXPECT_THAT(results[2].err, AllOf(HasSubstr("rank 3 (pid "), HasSubstr("is dead")));
}

}  // namespace
}  // namespace lockstep::testing
