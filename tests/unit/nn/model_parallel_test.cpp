// SPDX-License-Identifier: BSD-3-Clause
// ModelParallel on two devices beside the same module on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/nn/model_parallel.h>

#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

const c10::Device kFirst(at::kMTIA, 0), kSecond(at::kMTIA, 1);

// Residuals, factories, indices, buffers, tied weights and lists of tensors, which need no code for devices.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    emb = register_module("emb", torch::nn::Embedding(11, 6));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    norm->register_buffer("scale", torch::rand({6}));
  }
  Tensor forward(const Tensor& tokens) {
    auto x = emb(tokens) + 0.1 * torch::arange(6);
    std::vector<Tensor> outputs{x};
    for (const auto& layer : *layers) {
      x = x + torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
      outputs.push_back(x);
    }
    x = norm->named_buffers()["scale"] * norm(torch::stack(outputs).mean(0));
    x = x.index({torch::tensor({2, 1, 0})});
    x.add_(outputs.front());
    return torch::linear(x, emb->weight);
  }
  torch::nn::Embedding emb{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(3);
  return {};
}

const DeviceMap kMap{{"", kFirst}, {"layers.[23]", kSecond}, {"norm", kSecond}};

Tensor train(Net& net, torch::optim::Optimizer& optimizer, const ModelParallel* parts,
             const std::function<Tensor(const Tensor&)>& forward) {
  Tensor loss;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    {
      std::optional<ModelParallel::Scope> scope;
      if (parts != nullptr) scope.emplace(parts->follow());
      const auto logits = forward(torch::tensor({1, 5, step}));
      loss = torch::nn::functional::cross_entropy(logits, torch::tensor({4, 0, 2}));
    }
    loss.backward();
    optimizer.step();
  }
  EXPECT_TRUE(net->is_training());
  return loss.detach().cpu();
}

// The layer norm of these devices consists of other operators, which round differently.
constexpr double kTolerance = 1e-6;

void expect_close(const Net& net, const Net& expected) {
  const auto whole = expected->named_parameters();
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(item.value().detach().cpu().allclose(whole[item.key()], 0, kTolerance)) << item.key();
}

TEST(ModelParallel, TrainsAsOnOneDevice) {
  auto expected = make_net(), net = make_net();
  const ModelParallel parts(*net, kMap);
  EXPECT_EQ(net->layers[1]->as<torch::nn::Linear>()->weight.device(), kFirst);
  EXPECT_EQ(net->layers[2]->as<torch::nn::Linear>()->weight.device(), kSecond);
  EXPECT_EQ(net->norm->buffers()[0].device(), kSecond);
  torch::optim::SGD optimizer(net->parameters(), 0.1), reference(expected->parameters(), 0.1);
  const auto loss = train(net, optimizer, &parts, [&](const Tensor& x) { return net->forward(x); });
  const auto expected_loss =
      train(expected, reference, nullptr, [&](const Tensor& x) { return expected->forward(x); });
  EXPECT_TRUE(loss.allclose(expected_loss, 0, kTolerance)) << loss << expected_loss;
  expect_close(net, expected);
}

TEST(ModelParallel, TakesAFunction) {
  auto net = make_net();
  const ModelParallel parts(*net, [](const std::string& name, const torch::nn::Module&) {
    return name.starts_with("layers.") ? std::optional(kSecond) : std::nullopt;
  });
  EXPECT_EQ(net->layers[0]->as<torch::nn::Linear>()->weight.device(), kSecond);
  EXPECT_TRUE(net->emb->weight.is_cpu());
}

TEST(ModelParallel, LeavesOtherCodeAlone) {
  auto net = make_net();
  EXPECT_THAT(error_of<ArgumentError>([&] {
                ModelParallel(*net, DeviceMap{{"layer.*", kSecond}});
              }),
              AllOf(HasSubstr("\"layer.*\""), HasSubstr("layers"), HasSubstr("model_parallel_test.cpp")));
  const ModelParallel parts(*net, kMap);
  EXPECT_ANY_THROW(net->forward(torch::tensor({1, 5, 2})));  // without follow()
  const auto scope = parts.follow();
  auto target = torch::zeros({2}, kFirst);
  target.copy_(torch::ones({2}));
  EXPECT_EQ(target.device(), kFirst);
  EXPECT_EQ((target + torch::tensor(1.0)).device(), kFirst);
}

TEST(ModelParallel, ChangesTensorsOfAListWhereTheyAre) {
  auto net = make_net();
  const ModelParallel parts(*net, kMap);
  const auto first = torch::ones({2}, kFirst), second = torch::ones({2}, kSecond);
  const auto scope = parts.follow();
  net->emb(torch::tensor({1}));  // uses a parameter
  at::_foreach_mul_({first, second}, at::Scalar(3));
  EXPECT_TRUE(first.cpu().equal(torch::full({2}, 3.0)));
  EXPECT_TRUE(second.cpu().equal(torch::full({2}, 3.0)));
  at::_foreach_add_({second}, std::vector{first});
  EXPECT_TRUE(second.cpu().equal(torch::full({2}, 6.0)));
  at::_foreach_copy_({first, second}, {second, first});
  EXPECT_TRUE(first.cpu().equal(torch::full({2}, 6.0)));
  auto values = torch::zeros({}, kFirst);
  auto indices = torch::zeros({}, torch::dtype(at::kLong).device(kSecond));
  torch::max_out(values, indices, torch::tensor({1.0F, 5.0F}).to(kFirst), 0);
  EXPECT_EQ(indices.item<std::int64_t>(), 1);
}

}  // namespace
}  // namespace lockstep::testing
