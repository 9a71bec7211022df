// SPDX-License-Identifier: BSD-3-Clause
// MixtureOfExperts beside its definition, and experts on several ranks beside one process: values, gradients,
// drops.
#include <array>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "multiprocess/experts.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// One token after the other. Drops first the second choices, then the later tokens.
std::pair<Tensor, Tensor> defined_output(MixtureOfExperts& layer, const Tensor& tokens, bool normalizes) {
  const auto& options = layer->options();
  const auto count = tokens.size(0), top_k = options.top_k;
  const auto capacity =
      options.capacity_factor
          ? std::ceil(*options.capacity_factor * static_cast<double>(top_k * count) / kExperts)
          : std::numeric_limits<double>::infinity();
  const auto probabilities = layer->gate->forward(tokens).softmax(-1);
  const auto [values, indices] = probabilities.topk(top_k, -1);
  std::vector<Tensor> outputs(static_cast<std::size_t>(count), torch::zeros({kDim}));
  std::array<double, kExperts> taken{}, chosen{};
  const auto experts = layer->named_children()["experts"];
  for (std::int64_t choice = 0; choice < top_k; ++choice) {
    for (std::int64_t token = 0; token < count; ++token) {
      const auto expert = static_cast<std::size_t>(indices[token][choice].item<std::int64_t>());
      ++chosen[expert];
      if (taken[expert] == capacity) continue;
      ++taken[expert];
      const auto weight = values[token][choice] / (normalizes ? values[token].sum() : torch::ones({}));
      auto* net = experts->named_children()[std::to_string(expert)]->as<torch::nn::Sequential>();
      outputs[static_cast<std::size_t>(token)] =
          outputs[static_cast<std::size_t>(token)] + weight * net->forward(tokens[token]);
    }
  }
  auto aux_loss = torch::zeros({});
  for (std::size_t expert = 0; expert < kExperts; ++expert) {
    const auto share = chosen[expert] / static_cast<double>(top_k * count);
    aux_loss =
        aux_loss + kExperts * share * probabilities.select(1, static_cast<std::int64_t>(expert)).mean();
  }
  return {torch::stack(outputs), aux_loss};
}

TEST(MixtureOfExpertsLayer, IsWhatItsDefinitionSays) {
  struct Case {
    MixtureOfExpertsOptions options;
    bool normalizes, drops;
  };
  for (const auto& [options, normalizes, drops] :
       std::vector<Case>{{{.top_k = 2}, true, false},
                         {{.top_k = 3, .norm_topk_prob = false}, false, false},
                         {{.top_k = 1, .capacity_factor = 0.7}, false, true},
                         {{.top_k = 2, .capacity_factor = 0.8}, true, true}}) {
    SCOPED_TRACE(options.top_k);
    auto layer = make_layer(options);
    const auto tokens = torch::randn({3, 7, kDim});
    const auto found = layer->forward(tokens);
    const auto [output, aux_loss] = defined_output(layer, tokens.flatten(0, 1), normalizes);
    EXPECT_EQ(found.output.sizes(), tokens.sizes());
    EXPECT_LT(relative_difference(found.output.flatten(0, 1), output), 1e-6);
    EXPECT_NEAR(found.aux_loss.item<double>(), aux_loss.item<double>(), 1e-6);
    EXPECT_EQ(found.dropped > 0, drops);
    const auto loss = [](const Tensor& y, const Tensor& aux) { return y.square().sum() + aux; };
    const auto parameters = layer->parameters();
    const auto ours = torch::autograd::grad({loss(found.output, found.aux_loss)}, parameters);
    const auto expected = torch::autograd::grad({loss(output, aux_loss)}, parameters, {}, {}, false, true);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (expected[i].defined()) {
        EXPECT_LT(relative_difference(ours[i], expected[i]), 1e-5);
      } else {
        EXPECT_EQ(ours[i].abs().sum().item<double>(), 0);
      }
    }
  }
}

TEST(MixtureOfExpertsLayer, RefusesWhatCannotBe) {
  const auto error = [](const MixtureOfExpertsOptions& options) {
    return error_of<ArgumentError>([&] { make_layer(options); });
  };
  EXPECT_THAT(error({.top_k = 5}), HasSubstr("top_k = 5 of 4 experts"));
  EXPECT_THAT(error({.capacity_factor = 0.0}), HasSubstr("capacity_factor = 0"));
  EXPECT_THAT(error({.top_k = 1, .norm_topk_prob = true}), HasSubstr("the gate has no gradient"));
  auto layer = make_layer({});
  EXPECT_THAT(error_of<ArgumentError>([&] {
                layer->forward(torch::randn({2, kDim + 1}));
              }),
              HasSubstr("it is [..., 6]"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                MixtureOfExperts(MixtureOfExpertsOptions{.dim = 2, .num_experts = 2}, [] {
                  return torch::nn::Linear(2, 3);
                })->forward(torch::randn({4, 2}));
              }),
              HasSubstr("an expert returned"));
}

// Rank r's tokens: another number on each rank.
Tensor tokens_of(int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(300 + rank));
  return torch::randn({5 + 2 * rank, kDim});
}

Tensor loss_of(const MixtureOfExpertsOutput& found) {
  return (found.output * torch::arange(kDim)).square().mean() + 0.1 * found.aux_loss;
}

void expect_as_one_process(MixtureOfExpertsOptions options, const DeviceMesh& mesh) {
  auto whole = make_layer(options);
  options.mesh = mesh;
  auto layer = make_layer(options);
  const auto group = mesh.get_group();
  Tensor expected_output, expected_gradient;
  std::int64_t expected_dropped = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto tokens = tokens_of(rank).requires_grad_();
    const auto found = whole->forward(tokens);
    loss_of(found).backward();
    if (rank != group.rank()) continue;
    expected_output = found.output.detach();
    expected_gradient = tokens.grad();
    expected_dropped = found.dropped;
  }
  const auto tokens = tokens_of(group.rank()).requires_grad_();
  const auto found = layer->forward(tokens);
  loss_of(found).backward();
  EXPECT_LT(relative_difference(found.output, expected_output), 1e-6);
  EXPECT_LT(relative_difference(tokens.grad(), expected_gradient), 1e-6);
  EXPECT_EQ(found.dropped, expected_dropped);
  EXPECT_EQ(options.capacity_factor.has_value(), found.dropped > 0);
  group.all_reduce(layer->gate->weight.mutable_grad(), ReduceOp::AVG);
  const auto all = whole->named_parameters();
  EXPECT_EQ(layer->parameters().size(), 1U + 4U * kExperts / static_cast<std::size_t>(group.size()));
  for (const auto& item : layer->named_parameters()) {
    EXPECT_TRUE(item.value().equal(all[item.key()])) << item.key();
    EXPECT_LT(relative_difference(item.value().grad(), all[item.key()].grad() / group.size()), 1e-6)
        << item.key();
  }
}

const Scenario experts_like_one_process("experts_like_one_process", [] {
  const auto context = init({.backend = backend_under_test()});
  const auto mesh = init_device_mesh({context.world_size()});
  expect_as_one_process({.top_k = 2}, mesh);
  expect_as_one_process({.top_k = 1, .capacity_factor = 0.6}, mesh);
  expect_as_one_process({.top_k = 2, .capacity_factor = 0.7, .norm_topk_prob = false}, mesh);

  // A rank without tokens, and experts without tokens.
  auto layer = make_layer({.top_k = 1, .mesh = mesh});
  const auto found = layer->forward(torch::randn({context.rank() == 0 ? 1 : 0, kDim}));
  loss_of(found).backward();
  for (const auto& parameter : layer->parameters()) EXPECT_TRUE(parameter.grad().defined());
  EXPECT_EQ(found.output.size(0), context.rank() == 0 ? 1 : 0);
  EXPECT_THAT(error_of<ArgumentError>([&] {
                MixtureOfExperts(MixtureOfExpertsOptions{.dim = 2, .num_experts = 3, .mesh = mesh},
                                 [] { return torch::nn::Linear(2, 2); });
              }),
              HasSubstr("num_experts = 3 is not a multiple"));
});

class ExpertParallel : public EveryBackend {};

TEST_P(ExpertParallel, LayerAsInOneProcess) { run(experts_like_one_process); }

INSTANTIATE_TEST_SUITE_P(Backends, ExpertParallel, backends_and_ranks({2, 4}), name_of_case);

}  // namespace
}  // namespace lockstep::testing
