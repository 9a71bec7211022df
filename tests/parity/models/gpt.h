// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

#include <lockstep/ddp/activation_checkpoint.h>

namespace lockstep::testing {

struct GptOptions {
  std::int64_t vocabulary = 64;
  std::int64_t context = 16;
  std::int64_t width = 32;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  double dropout = 0.1;
  std::string checkpoint = "none";  // "none", "plain" or "reentrant": how blocks are recomputed
};

// What Python's Linear does. torch::nn::Linear adds the bias in a call of its own to inputs of more than two
// dimensions, which rounds otherwise and takes longer.
inline at::Tensor fused_linear(const torch::nn::Linear& linear, const at::Tensor& x) {
  return at::linear(x, linear->weight, linear->bias);
}

struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl(std::int64_t width, std::int64_t heads, double p = 0.1) : heads_(heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
    dropout = register_module("dropout", torch::nn::Dropout(p));
  }
  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0);
    const auto length = x.size(1);
    const auto split = fused_linear(qkv, norm1->forward(x))
                           .view({batch, length, 3, heads_, -1})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();  // as Python's assignment to three names does
    auto y = at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, true);
    y = y.transpose(1, 2).reshape({batch, length, -1});
    x = x + dropout->forward(fused_linear(out, y));
    return x + fused_linear(down, at::gelu(fused_linear(up, norm2->forward(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  std::int64_t heads_;
};
TORCH_MODULE(GptBlock);

// A small GPT whose output layer is its embedding: tokens [batch, length] -> logits [batch, length,
// vocabulary].
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options) : checkpoint_(options.checkpoint) {
    tokens = register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width));
    positions = register_module("positions", torch::nn::Embedding(options.context, options.width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < options.layers; ++i)
      blocks->push_back(GptBlock(options.width, options.heads, options.dropout));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
    head = register_parameter("head", tokens->weight);
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = tokens->forward(ids);  // in Python's order, which decides the order of gradients
    x = x + positions->forward(at::arange(ids.size(1), ids.options()));
    for (const auto& each : *blocks) {
      const auto block = std::dynamic_pointer_cast<GptBlockImpl>(each);
      x = checkpoint_ == "none" ? block->forward(x)
                                : checkpoint({.use_reentrant = checkpoint_ == "reentrant"}, block, x);
    }
    return at::linear(norm->forward(x), head);
  }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor head;

 private:
  std::string checkpoint_;
};
TORCH_MODULE(Gpt);

}  // namespace lockstep::testing
