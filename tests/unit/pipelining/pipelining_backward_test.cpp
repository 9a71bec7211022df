// SPDX-License-Identifier: BSD-3-Clause
// Backward in two parts beside one backward, and the cut of a Sequential.
#include <algorithm>
#include <numeric>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/pipelining/pipeline.h>

#include "pipelining/split_backward.h"
#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;
using at::Tensor;
using ::testing::HasSubstr;

// Layers that are used twice, a residual, a parameter that only the second output has.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    second = register_module("second", torch::nn::Linear(6, 6));
    bias = register_parameter("bias", torch::randn({6}));
    alone = register_parameter("alone", torch::randn({4}));
  }
  Tensors forward(const Tensor& x) {
    auto h = norm(first(x)).tanh();
    h = h + first(h) + bias * x;
    return {second(h).mm(second->weight), (alone * alone).sum(), h.detach()};
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  Tensor bias, alone;
};
TORCH_MODULE(Net);

// The matrix products that `body` makes.
int products(const std::function<void()>& body) {
  static int count;
  count = 0;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = call.name();
        if (name == "aten::mm" || name == "aten::addmm") ++count;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  body();
  at::removeCallback(handle);
  return count;
}

TEST(SplitBackward, PartsAreOneBackwardToTheLastBit) {
  torch::manual_seed(1);
  Net whole, parts;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : whole->named_parameters())
      parts->named_parameters()[item.key()].copy_(item.value());
  }
  const auto x = torch::randn({5, 6}).requires_grad_(), y = x.detach().clone().requires_grad_();
  const Tensors gradients{torch::randn({5, 6}), torch::ones({}), {}};
  const auto outputs = whole->forward(x);
  const int in_one = products([&] {
    torch::autograd::backward({outputs[0], outputs[1]}, {gradients[0], gradients[1]});
  });
  SplitBackward split;
  const auto split_outputs = parts->forward(y);
  Tensors found;
  const int first = products([&] { found = split.input_part(split_outputs, gradients, {y}); });
  EXPECT_TRUE(found.at(0).equal(x.grad()));
  for (const auto& parameter : parts->parameters()) EXPECT_FALSE(parameter.grad().defined());
  const int second = products([&] { split.weight_part(); });
  for (const auto& item : parts->named_parameters())
    EXPECT_TRUE(item.value().grad().equal(whole->named_parameters()[item.key()].grad())) << item.key();
  EXPECT_FALSE(y.grad().defined());
  EXPECT_EQ(first + second, in_one);
  EXPECT_EQ(second * 2, in_one);
  EXPECT_GT(first, 0);
  split.weight_part();
  EXPECT_TRUE(parts->alone.grad().equal(whole->alone.grad()));
}

TEST(SplitBackward, WithoutInputsTheWeightPartIsAll) {
  torch::nn::Linear layer(3, 2);
  const auto output = layer(torch::ones({4, 3}));
  SplitBackward split;
  EXPECT_TRUE(split.input_part({output}, {torch::ones({4, 2})}, {}).empty());
  EXPECT_FALSE(layer->weight.grad().defined());
  split.weight_part();
  EXPECT_TRUE(layer->weight.grad().equal(torch::full({2, 3}, 4.0)));
}

TEST(SplitSequential, ByCountParametersAndCosts) {
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::ReLU(), torch::nn::Linear(8, 8),
                            torch::nn::Linear(8, 32), torch::nn::Linear(32, 8), torch::nn::ReLU());
  const auto names = [](const std::vector<torch::nn::Sequential>& parts) {
    std::vector<std::vector<std::string>> all;
    for (const auto& part : parts) all.push_back(part->named_children().keys());
    return all;
  };
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(names(split_sequential(net, 3, SplitBy::count)), (Names{{"0", "1"}, {"2", "3"}, {"4", "5"}}));
  EXPECT_EQ(names(split_sequential(net, 2)), (Names{{"0", "1", "2", "3"}, {"4", "5"}}));
  EXPECT_EQ(names(split_sequential(net, 2, {9, 1, 1, 1, 1, 1})), (Names{{"0"}, {"1", "2", "3", "4", "5"}}));
  const auto x = torch::randn({2, 8});
  auto h = x;
  for (auto& part : split_sequential(net, 3)) h = part->forward(h);
  EXPECT_TRUE(h.equal(net->forward(x)));
  EXPECT_EQ(split_sequential(net, 2)[0]->named_parameters().keys().front(), "0.weight");
  EXPECT_THAT(error_of<ArgumentError>([&] { split_sequential(net, 7); }), HasSubstr("6 layers cannot be 7"));
}

TEST(MeasureLayers, TimesEachLayerAndChangesNothing) {
  torch::nn::Sequential net(torch::nn::Embedding(11, 8), torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32),
                            torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)),
                            torch::nn::Dropout(0.5), torch::nn::Linear(32, 8));
  const auto tokens = torch::tensor({1, 5, 2});
  EXPECT_EQ(measure_layers(net, tokens, 1).size(), 6U);
  for (const auto& each : net->parameters()) EXPECT_FALSE(each.grad().defined());
  net->forward(tokens).sum().backward();
  const auto tensors = [&] {
    std::vector<at::Tensor> all;
    for (const auto& each : net->parameters()) all.push_back(each.grad().clone());
    for (const auto& each : net->buffers()) all.push_back(each.clone());
    return all;
  };
  const auto before = tensors();
  torch::manual_seed(4);
  const auto next_random = torch::rand({3});
  torch::manual_seed(4);
  const auto costs = measure_layers(net, tokens);
  EXPECT_TRUE(torch::rand({3}).equal(next_random));
  const auto after = tensors();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i].equal(before[i])) << i;
  ASSERT_EQ(costs.size(), 6U);
  for (const double cost : costs) EXPECT_GT(cost, 0);

  // No other cut has a smaller largest part.
  const auto largest_part = [&](std::size_t cut) {
    const auto middle = costs.begin() + static_cast<std::ptrdiff_t>(cut);
    return std::max(std::accumulate(costs.begin(), middle, 0.0), std::accumulate(middle, costs.end(), 0.0));
  };
  const auto parts = split_sequential(net, 2, costs);
  EXPECT_EQ(parts[0]->size() + parts[1]->size(), 6U);
  for (std::size_t cut = 1; cut < 6; ++cut)
    EXPECT_LE(largest_part(parts[0]->size()), largest_part(cut) * (1 + 1e-12)) << cut;
  EXPECT_THAT(error_of<ArgumentError>([&] { measure_layers(net, tokens, 0); }), HasSubstr("0 repetitions"));
}

}  // namespace
}  // namespace lockstep::testing
