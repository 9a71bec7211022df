// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>

#include <torch/torch.h>

#include <lockstep/tensor_parallel/parallelize_module.h>

namespace lockstep::testing {

// A small GPT whose layers can be cut: its attention takes as many heads as its projections return.
struct ParallelBlockImpl : torch::nn::Module {
  ParallelBlockImpl(int width, int head_dim, double p, bool bias) : head_dim_(head_dim) {
    const auto linear = [&](const char* name, int in, int out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
    };
    ln1 = register_module("ln1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    q = linear("q", width, width);
    k = linear("k", width, width);
    v = linear("v", width, width);
    o = linear("o", width, width);
    ln2 = register_module("ln2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    fc1 = linear("fc1", width, 4 * width);
    fc2 = linear("fc2", 4 * width, width);
    drop = register_module("drop", torch::nn::Dropout(p));
  }

  at::Tensor forward(const at::Tensor& input) {
    const auto normed = ln1(input);
    const auto heads = [&](const at::Tensor& each) {
      return each.view({each.size(0), each.size(1), -1, head_dim_}).transpose(1, 2);
    };
    // Arguments of one call may be made in any order, which the sum of the gradients follows.
    const auto queries = heads(q(normed)), keys = heads(k(normed)), values = heads(v(normed));
    const auto attended = at::scaled_dot_product_attention(queries, keys, values, {}, 0, /*is_causal=*/true);
    auto hidden = input + drop(o(attended.transpose(1, 2).flatten(2)));
    return hidden + drop(fc2(torch::gelu(fc1(ln2(hidden)))));
  }

  torch::nn::LayerNorm ln1{nullptr}, ln2{nullptr};
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, fc1{nullptr}, fc2{nullptr};
  torch::nn::Dropout drop{nullptr};

 private:
  int head_dim_;
};
TORCH_MODULE(ParallelBlock);

struct ParallelNetImpl : torch::nn::Module {
  static constexpr int kVocabulary = 28, kLength = 8, kWidth = 16, kHeadDim = 4;

  explicit ParallelNetImpl(double p = 0, bool bias = true) {
    emb = register_module("emb", torch::nn::Embedding(kVocabulary, kWidth));
    pos = register_module("pos", torch::nn::Embedding(kLength, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) layers->push_back(ParallelBlock(kWidth, kHeadDim, p, bias));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head =
        register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    auto hidden = emb(tokens) + pos(torch::arange(tokens.size(1)).expand_as(tokens));
    for (const auto& layer : *layers) hidden = layer->as<ParallelBlock>()->forward(hidden);
    return head(norm(hidden));
  }

  torch::nn::Embedding emb{nullptr}, pos{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ParallelNet);

// This rank's part of `whole` in the shape of `part`.
inline at::Tensor part_like(const at::Tensor& whole, const at::Tensor& part, const DeviceMesh& mesh) {
  auto result = whole.detach();
  for (int dim = 0; dim < whole.dim(); ++dim) {
    if (whole.size(dim) == part.size(dim)) continue;
    const auto chunk = (whole.size(dim) + mesh.size() - 1) / mesh.size();
    result = result.narrow(dim, std::min(chunk * mesh.get_local_rank(), whole.size(dim)), part.size(dim));
  }
  return result;
}

// Input and target of a step.
inline std::pair<at::Tensor, at::Tensor> draw_tokens(int step, int replica = 0) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + replica));
  const auto tokens = torch::randint(ParallelNetImpl::kVocabulary, {3, ParallelNetImpl::kLength + 1});
  return {tokens.slice(1, 0, -1), tokens.slice(1, 1).reshape({-1})};
}

// Whole activations between the pairs of layers.
inline tensor_parallel::ParallelizePlan tensor_plan() {
  using namespace tensor_parallel;
  return {{"emb", RowwiseParallel{.input_layouts = Replicate()}},
          {"pos", ColwiseParallel{.output_layouts = Replicate()}},
          {"layers.*.[qkv]", ColwiseParallel()},
          {"layers.*.o", RowwiseParallel()},
          {"layers.*.fc1", ColwiseParallel()},
          {"layers.*.fc2", RowwiseParallel()},
          {"head", ColwiseParallel{.output_layouts = Replicate()}}};
}

// Parts of the sequence between the pairs of layers, and parts of the logits.
inline tensor_parallel::ParallelizePlan sequence_plan() {
  using namespace tensor_parallel;
  const ColwiseParallel of_sequence{.input_layouts = tensor_parallel::Shard(1)};
  const RowwiseParallel to_sequence{.output_layouts = tensor_parallel::Shard(1)};
  const RowwiseParallel lookup{.input_layouts = Replicate(), .output_layouts = tensor_parallel::Shard(1)};
  return {{"emb", lookup},
          {"pos", lookup},
          {"layers.*.ln?", SequenceParallel()},
          {"layers.*.drop", SequenceParallel()},
          {"layers.*.[qkv]", of_sequence},
          {"layers.*.o", to_sequence},
          {"layers.*.fc1", of_sequence},
          {"layers.*.fc2", to_sequence},
          {"norm", SequenceParallel()},
          {"head", of_sequence}};
}

}  // namespace lockstep::testing
