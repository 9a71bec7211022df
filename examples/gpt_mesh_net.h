// SPDX-License-Identifier: BSD-3-Clause
// The nets of gpt_mesh.cpp, of which a rank has some layers, heads, positions and experts.
#pragma once

#include <memory>
#include <vector>

#include <lockstep/lockstep.h>

struct Sizes {
  static constexpr std::int64_t kHeadDim = 32;
  std::int64_t context = 64, width = 128, experts = 0;  // of each block; 0: an MLP
  int layers = 4;
};

struct Embeddings : torch::nn::Module {
  Embeddings(const Sizes& sizes, const lockstep::DeviceMesh& mesh)
      : positions(lockstep::context_parallel::shard(torch::arange(sizes.context), mesh["cp"], 0)),
        wte(register_module("wte", torch::nn::Embedding(256, sizes.width))),
        wpe(register_module("wpe", torch::nn::Embedding(sizes.context, sizes.width))) {}
  at::Tensor forward(const at::Tensor& tokens) { return wte(tokens) + wpe(positions); }
  at::Tensor positions;  // of this rank
  torch::nn::Embedding wte, wpe;
};

struct Block : torch::nn::Module {
  Block(const Sizes& sizes, const lockstep::DeviceMesh& mesh) : cp(mesh["cp"]) {
    const auto width = sizes.width;
    for (const auto* name : {"ln_1", "ln_2"})
      norms.push_back(register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}))));
    for (const auto* name : {"q", "k", "v", "o"})
      attention.push_back(register_module(name, torch::nn::Linear(width, width)));
    const auto make = [=] {
      return torch::nn::Sequential(torch::nn::Linear(width, 4 * width), torch::nn::GELU(),
                                   torch::nn::Linear(4 * width, width));
    };
    if (sizes.experts == 0) {
      mlp = register_module("mlp", make());
    } else {
      const lockstep::MixtureOfExpertsOptions options{
          .dim = width, .num_experts = sizes.experts, .mesh = mesh["ep"]};
      moe = register_module("moe", lockstep::MixtureOfExperts(options, make));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto normed = norms[0](x);
    // As many heads as the projection returns: all, or this rank's.
    const auto heads = [&](int i) {
      return attention[i](normed).unflatten(-1, {-1, Sizes::kHeadDim}).transpose(1, 2);
    };
    const auto y = lockstep::context_parallel::scaled_dot_product_attention(heads(0), heads(1), heads(2), cp,
                                                                            {.is_causal = true});
    const auto attended = x + attention[3](y.transpose(1, 2).flatten(2));
    const auto z = norms[1](attended);
    return attended + (moe ? moe(z).output : mlp->forward(z));
  }
  lockstep::DeviceMesh cp;
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> attention;
  torch::nn::Sequential mlp{nullptr};
  lockstep::MixtureOfExperts moe{nullptr};
};

// What tensor parallel does with a layer; empty: nothing.
inline lockstep::tensor_parallel::ParallelizePlan plan_of(const torch::nn::Module& layer) {
  using namespace lockstep::tensor_parallel;
  const PrepareModuleInput once{.input_layouts = Replicate()};  // one reduction in backward for q, k and v
  if (const auto* const block = layer.as<Block>()) {
    ParallelizePlan plan{{"", once}, {"[qkv]", ColwiseParallel()}, {"o", RowwiseParallel()}};
    if (!block->moe)
      plan.insert(plan.end(),
                  {{"mlp.0", ColwiseParallel{.input_layouts = Replicate()}}, {"mlp.2", RowwiseParallel()}});
    return plan;
  }
  if (layer.name() != "LlamaDecoderLayer") return {};
  return {{"self_attn", once},
          {"self_attn.[qkv]_proj", ColwiseParallel()},
          {"self_attn.o_proj", RowwiseParallel()},
          {"mlp", once},
          {"mlp.[gu]*_proj", ColwiseParallel()},
          {"mlp.down_proj", RowwiseParallel()}};
}

// The library's model, whose code knows nothing of meshes.
inline lockstep::models::Llama make_llama(const Sizes& sizes, const lockstep::DeviceMesh& mesh) {
  const auto attention = [cp = mesh["cp"]](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return lockstep::context_parallel::scaled_dot_product_attention(q, k, v, cp, {.is_causal = true});
  };
  return lockstep::models::Llama(
      lockstep::models::LlamaOptions{.vocab_size = 256,
                                     .hidden_size = sizes.width,
                                     .intermediate_size = 4 * sizes.width,
                                     .num_hidden_layers = sizes.layers,
                                     .num_attention_heads = sizes.width / Sizes::kHeadDim,
                                     .attn_implementation = attention});
}

inline torch::nn::Sequential make_gpt(const Sizes& sizes, const lockstep::DeviceMesh& mesh) {
  torch::nn::Sequential net(std::make_shared<Embeddings>(sizes, mesh));
  for (int i = 0; i < sizes.layers; ++i) net->push_back(std::make_shared<Block>(sizes, mesh));
  net->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})));
  net->push_back(torch::nn::Linear(torch::nn::LinearOptions(sizes.width, 256).bias(false)));
  return net;
}
