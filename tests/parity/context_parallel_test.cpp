// SPDX-License-Identifier: BSD-3-Clause
// Shards, ring attention and its gradients beside PyTorch's, over gloo on both sides.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/context_parallel/context_parallel.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "parity/both_sides.h"
#include "parity/tensor_record.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace cp = context_parallel;
using at::Tensor;

struct AttentionCase {
  const char* name;
  bool is_causal;
  cp::LoadBalancer load_balancer;
};
const std::vector<AttentionCase> kAttentionCases{{"balanced", true, cp::LoadBalancer::head_tail},
                                                 {"causal", true, cp::LoadBalancer::none},
                                                 {"full", false, cp::LoadBalancer::none}};

std::vector<Record> attend_and_differentiate(const AttentionCase& each) {
  const auto mesh = init_device_mesh({get_world_size()});
  torch::manual_seed(11);
  std::vector<Tensor> parts;
  for (int i = 0; i < 4; ++i)
    parts.push_back(cp::shard(torch::randn({2, 3, 8 * mesh.size(), 4}), mesh, 2, each.load_balancer));
  const auto output_gradient = parts.back();
  parts.pop_back();
  for (auto& part : parts) part.requires_grad_();
  const auto output = cp::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], mesh, {.is_causal = each.is_causal, .load_balancer = each.load_balancer});
  const auto gradients = torch::autograd::grad({output}, parts, {output_gradient});
  return {record_of("query", parts[0]),
          record_of("output", output),
          record_of("unsharded", cp::unshard(output, mesh, 2, each.load_balancer)),
          record_of("of_query", gradients[0]),
          record_of("of_key", gradients[1]),
          record_of("of_value", gradients[2])};
}

const Scenario context_parallel_cases("context parallel", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& each : kAttentionCases)
      write_records(record_file(record_folder(), each.name, context.rank()), attend_and_differentiate(each));
  });
});

class ContextParallelParity : public ::testing::TestWithParam<int> {};

TEST_P(ContextParallelParity, ShardsAttentionAndGradients) {
  std::vector<std::string> cases;
  for (const auto& each : kAttentionCases)
    cases.push_back(fmt::format("name={} causal={} balanced={}", each.name, each.is_causal ? 1 : 0,
                                each.load_balancer == cp::LoadBalancer::head_tail ? 1 : 0));
  const BothSides sides("parity/context_parallel.py", context_parallel_cases, cases, "gloo", GetParam());
  ASSERT_FALSE(HasFailure());
  for (const auto& each : kAttentionCases) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {} of {}", each.name, rank, GetParam()));
      const auto python = read_records(sides.python_file(each.name, rank));
      const auto ours = read_records(sides.our_file(each.name, rank));
      ASSERT_EQ(python.size(), ours.size());
      for (std::size_t i = 0; i < python.size(); ++i) EXPECT_EQ(first_difference(python[i], ours[i]), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextParallelParity, ::testing::Values(2, 3));

}  // namespace
}  // namespace lockstep::testing
