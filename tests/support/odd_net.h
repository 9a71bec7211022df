// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>

#include <torch/torch.h>

namespace lockstep::testing {

/// Parameters of odd sizes, tied, frozen, used twice, and unused in some steps.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    torch::manual_seed(7);
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 5).batch_first(true)));
    twice = register_module("twice", torch::nn::Linear(5, 5));
    frozen = register_module("frozen", torch::nn::Linear(5, 6));
    sometimes = register_module("sometimes", torch::nn::Linear(6, 3));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    register_module("head", std::make_shared<torch::nn::Module>())
        ->register_parameter("weight", embedding->weight);
    scale = register_parameter("scale", torch::ones({1}));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  /// `tokens`: int64 in 0 .. 10, [batch, length]. Returns a loss.
  at::Tensor forward(const at::Tensor& tokens, bool uses_all) {
    // Linear of LibTorch rounds twice for inputs of three dimensions, that of Python once.
    auto x = std::get<0>(lstm(embedding(tokens))).flatten(0, 1);
    x = norm(frozen(twice(twice(x).tanh()))) * scale;
    auto loss = torch::matmul(x, embedding->weight.t()).logsumexp(-1).mean();
    return uses_all ? loss + sometimes(x).pow(2).mean() : loss;
  }
  /// Each once, as in Python.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> once;
    for (const auto& each : Module::parameters()) {
      const auto is_same = [&](const auto& other) { return other.is_same(each); };
      if (std::ranges::none_of(once, is_same)) once.push_back(each);
    }
    return once;
  }
  std::vector<std::shared_ptr<torch::nn::Module>> children_to_shard() const {
    return {lstm.ptr(), twice.ptr(), frozen.ptr(), sometimes.ptr()};
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear twice{nullptr}, frozen{nullptr}, sometimes{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(OddNet);

}  // namespace lockstep::testing
