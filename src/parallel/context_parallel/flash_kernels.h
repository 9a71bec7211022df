// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

// LibTorch's flash attention of a block of queries to a block of keys.
namespace lockstep::context_parallel {

struct Block {
  at::Tensor query, key, value;
  bool is_causal;
  std::optional<double> scale;
};

struct Attended {
  at::Tensor output;     // [batch, heads, length, head_dim]
  at::Tensor logsumexp;  // [batch, heads, length]
};

Attended attend(const Block& block);

struct BlockGradients {
  at::Tensor query, key, value;
};

// `whole`: of the queries to all keys, of which those of the block are a part.
BlockGradients gradients_of(const Block& block, const Attended& whole, const at::Tensor& output_gradient);

}  // namespace lockstep::context_parallel
