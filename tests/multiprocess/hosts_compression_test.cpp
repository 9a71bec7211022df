// SPDX-License-Identifier: BSD-3-Clause
// Communication hooks that apply to what crosses hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/distributed.h>

#include "multiprocess/hosts.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The result of a hook for this rank's numbers, in three parameters of 2,000,000 elements, one a matrix.
at::Tensor reduced_by(const CommHook& hook, const Context& context, const at::Tensor& numbers) {
  std::vector<GradBucket::Parameter> parameters{{"scalar", torch::empty({}), 0},
                                                {"weight", torch::empty({999, 2000}), 1},
                                                {"bias", torch::empty({1999}), 1'998'001}};
  GradBucket bucket(0, true, numbers.clone(), std::move(parameters), context.group());
  return hook(bucket).wait();
}

void expect_same_on_all(const at::Tensor& tensor, const Context& context) {
  auto of_first = tensor.clone();
  context.group().broadcast(of_first, 0);
  EXPECT_TRUE(torch::equal(tensor, of_first));
}

constexpr std::int64_t kElements = 2'000'000;

// The means of the hosts' ranks as the hooks get them: a host's sum divided by the mean number of ranks.
std::vector<at::Tensor> means_of(const std::vector<std::vector<int>>& hosts, int ranks) {
  std::vector<at::Tensor> means;
  for (const auto& host : hosts) {
    auto sum = torch::zeros({kElements});
    for (const int rank : host) sum += numbers_of(rank, kElements) / (double(ranks) / double(hosts.size()));
    means.push_back(sum);
  }
  return means;
}

void expect_compression_of_two_hosts(const Context& context, const std::vector<std::vector<int>>& hosts) {
  const auto own = numbers_of(context.rank(), kElements);
  const auto means = means_of(hosts, context.world_size());
  EXPECT_TRUE(
      torch::equal(reduced_by(between_hosts(allreduce_hook), context, own), means[0] / 2 + means[1] / 2));
  const auto in_bf16 = means[0].to(torch::kBFloat16) / 2 + means[1].to(torch::kBFloat16) / 2;
  EXPECT_TRUE(
      torch::equal(reduced_by(between_hosts(bf16_compress_hook), context, own), in_bf16.to(torch::kFloat)));
  EXPECT_THROW(between_hosts({}), ArgumentError);
}

// Signs and mean values of the halves that the two ranks of a host own, whose border is in the matrix.
at::Tensor known_after_one_bit(const at::Tensor& mean) {
  auto known = mean.clone();
  for (const auto& [begin, end] :
       {std::pair{0L, 1L}, {1L, 998'001L}, {998'001L, 1'998'001L}, {1'998'001L, kElements}}) {
    auto part = known.slice(0, begin, end);
    part.copy_(torch::where(part >= 0, 1, -1) * part.abs().mean());
  }
  return known;
}

// A matrix of rank 4 at most over all ranks, which four columns stand for.
at::Tensor low_rank_numbers(int rank) {
  auto numbers = numbers_of(rank, kElements);
  const auto matrix = torch::outer(numbers_of(rank + 4, 999), numbers_of(rank + 8, 2000));
  numbers.slice(0, 1, 1'998'001).copy_(matrix.view({-1}));
  return numbers;
}

const Scenario on_a_cable("compression on a cable", [] {
  const auto context = init();
  const auto own = numbers_of(context.rank(), kElements);
  at::Tensor reduced;
  // What this host sends for a byte of gradients.
  const auto sent_by = [&](const CommHook& hook, const at::Tensor& numbers) {
    context.barrier();
    const auto before = sent_bytes();
    reduced = reduced_by(hook, context, numbers);
    context.barrier();
    const auto sent = static_cast<double>(sent_bytes() - before) / (4.0 * kElements);
    context.barrier();
    expect_same_on_all(reduced, context);
    return sent;
  };
  expect_compression_of_two_hosts(context, {{0, 1}, {2, 3}});
  EXPECT_THAT(sent_by(between_hosts(allreduce_hook), own), AllOf(::testing::Ge(1), ::testing::Le(1.1)));
  EXPECT_THAT(sent_by(between_hosts(bf16_compress_hook), own),
              AllOf(::testing::Ge(0.5), ::testing::Le(0.55)));

  const auto means = means_of({{0, 1}, {2, 3}}, 4);
  const auto one_bit = between_hosts(OneBit());
  for (int i = 0; i < 2; ++i) sent_by(one_bit, own);
  EXPECT_TRUE(torch::equal(reduced, means[0] / 2 + means[1] / 2));
  std::vector<at::Tensor> errors(2, torch::zeros({kElements}));
  for (int i = 0; i < 2; ++i) {
    auto sum = torch::zeros({kElements});
    for (std::size_t host = 0; host < 2; ++host) {
      const auto wanted = means[host] + errors[host];
      const auto known = known_after_one_bit(wanted);
      errors[host] = wanted - known;
      sum += known / 2;
    }
    EXPECT_LT(sent_by(one_bit, own), 0.04);
    EXPECT_TRUE(torch::allclose(reduced, sum, 1e-4, 1e-6)) << i;
  }

  const auto mine = low_rank_numbers(context.rank());
  auto mean = torch::zeros({kElements});
  for (int rank = 0; rank < 4; ++rank) mean += low_rank_numbers(rank) / 4;
  const auto power_sgd = between_hosts(PowerSGD({.matrix_approximation_rank = 4, .start_powerSGD_iter = 2}));
  for (int i = 0; i < 2; ++i) sent_by(power_sgd, mine);
  EXPECT_LT(sent_by(power_sgd, mine), 0.05);
  EXPECT_TRUE(torch::allclose(reduced, mean, 1e-3, 1e-3));
});

// The gradients of a step are the mean in the documented order.
const Scenario gradients_on_hosts("a step of DDP over hosts", [] {
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
  DistributedDataParallel compressed_ddp(net);
  compressed_ddp->register_comm_hook(between_hosts(bf16_compress_hook));
  const auto compressed = gradients_of(context.rank(), compressed_ddp);
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    // DDP divides before it sums, as Python's does.
    const auto part = [&](std::size_t rank) { return of_rank[rank][i] / 4; };
    EXPECT_TRUE(torch::equal(reduced[i], (part(0) + part(1)) + (part(2) + part(3)))) << i;
    const auto sent = [&](std::size_t rank) {
      return (of_rank[rank][i] / 2 + of_rank[rank + 1][i] / 2).to(torch::kBFloat16) / 2;
    };
    EXPECT_TRUE(torch::equal(compressed[i], (sent(0) + sent(2)).to(torch::kFloat))) << i;
  }
});

const Scenario uneven_compression("compression on uneven hosts", [] {
  const auto context = init();
  expect_compression_of_two_hosts(context, {{0, 1, 2}, {3, 4}});
  EXPECT_THROW(OneBit({.start_iter = 1}), ArgumentError);
  const auto other = context.new_group({0, 1, 2, 3, 4});
  const auto numbers = numbers_of(0, kElements);
  EXPECT_THAT([&] { reduced_by(between_hosts(OneBit(), other), context, numbers); },
              ThrowsMessage<ArgumentError>(HasSubstr("DistributedDataParallel has default")));
  const auto sparse = between_hosts(OneBit());
  EXPECT_THAT([&] { reduced_by(sparse, context, torch::eye(3).to_sparse()); },
              ThrowsMessage<ArgumentError>(HasSubstr("that of scalar is sparse")));
});

TEST(HostsCompression, SendsFewerBytes) { run_over_a_cable(on_a_cable); }
TEST(HostsCompression, OfUnevenHosts) {
  expect_all_passed(run_on_hosts(uneven_compression, {0, 0, 0, 1, 1}));
}
TEST(HostsCompression, OfTheGradientsOfDdp) {
  expect_all_passed(run_on_hosts(gradients_on_hosts, {0, 0, 1, 1}));
}

}  // namespace
}  // namespace lockstep::testing
