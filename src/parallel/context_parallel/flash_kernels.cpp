// SPDX-License-Identifier: BSD-3-Clause
#include "context_parallel/flash_kernels.h"

#include <tuple>

#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

namespace lockstep::context_parallel {

Attended attend(const Block& block) {
  const auto& [query, key, value, is_causal, scale] = block;
  if (query.is_cpu()) {
    const auto found =
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, {}, scale);
    return {std::get<0>(found), std::get<1>(found)};
  }
  const auto found = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, false, scale);
  return {std::get<0>(found), std::get<1>(found)};
}

BlockGradients gradients_of(const Block& block, const Attended& whole, const at::Tensor& output_gradient) {
  const auto& [query, key, value, is_causal, scale] = block;
  if (query.is_cpu()) {
    const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        output_gradient, query, key, value, whole.output, whole.logsumexp, 0.0, is_causal, {}, scale);
    return {of_query, of_key, of_value};
  }
  const auto no_seed = at::empty({0}, query.options().dtype(at::kLong));
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_backward(
      output_gradient, query, key, value, whole.output, whole.logsumexp.contiguous(), {}, {}, query.size(2),
      key.size(2), 0.0, is_causal, no_seed, no_seed, scale);
  return {of_query, of_key, of_value};
}

}  // namespace lockstep::context_parallel
