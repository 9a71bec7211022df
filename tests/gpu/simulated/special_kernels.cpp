// SPDX-License-Identifier: BSD-3-Clause
#include "special_kernels.h"

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include <ATen/DeviceGuard.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>

#include "operator_call.h"
#include "simulated.h"

namespace lockstep::simulated {
namespace {

bool is_plain(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense();
}

// Between host and device LibTorch's own way leads to the runtime's copies. So it does between devices, for
// what lies alike on both; for the rest it would use a kernel.
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!to.is_cuda() || !from.is_cuda()) return at::native::copy_(to, from, non_blocking);
  if (to.device() != from.device()) {
    if (is_plain(to, from)) return at::native::copy_(to, from, non_blocking);
    at::Tensor there =
        at::empty_like(from, from.options().device(to.device()).memory_format(at::MemoryFormat::Contiguous));
    const auto dense = from.contiguous();
    at::native::copy_(there, dense, non_blocking);
    return to.copy_(there);
  }
  const at::DisableRecordFunctionGuard unobserved;
  const c10::OptionalDeviceGuard guard(to.device());
  const auto target = ref_to(to), source = ref_to(from);
  C10_CUDA_CHECK(lockstep_simulated_launch(at::cuda::getCurrentCUDAStream(), [target, source] {
    at::set_num_threads(1);
    on_cpu(target).copy_(on_cpu(source));
  }));
  return to;
}

std::int64_t choose_math(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

// What flash attention computes, by operators that the device has. Each head of keys serves as many heads of queries.
struct Attention {
  at::Tensor query, key, value;  // float, scaled queries, equal heads
  double scale;
  at::Tensor scores{};
};

Attention attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
                    bool is_causal, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0, "simulated GPU: flash attention with dropout is not simulated");
  const auto factor = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  const auto queries_of_key = query.size(1) / key.size(1);
  Attention made{.query = query.to(at::kFloat) * factor,
                 .key = key.to(at::kFloat).repeat_interleave(queries_of_key, 1),
                 .value = value.to(at::kFloat).repeat_interleave(queries_of_key, 1),
                 .scale = factor};
  made.scores = made.query.matmul(made.key.transpose(-2, -1));
  if (is_causal) {
    const auto hidden = at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).triu(1);
    made.scores = made.scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  return made;
}

using FlashResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                               at::Tensor, at::Tensor, at::Tensor>;

FlashResult flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            double dropout, bool is_causal, bool, std::optional<double> scale) {
  const auto made = attention(query, key, value, dropout, is_causal, scale);
  const auto log_sum = made.scores.logsumexp(-1);
  const auto output = (made.scores - log_sum.unsqueeze(-1)).exp().matmul(made.value);
  const auto nothing = at::empty({0}, query.options().dtype(at::kLong));
  return {output.to(query.scalar_type()), log_sum, {}, {}, query.size(2), key.size(2), nothing, nothing, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& log_sum, const at::Tensor&, const at::Tensor&, c10::SymInt,
    c10::SymInt, double dropout, bool is_causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  const auto made = attention(query, key, value, dropout, is_causal, scale);
  const auto weights = (made.scores - log_sum.unsqueeze(-1)).exp();
  const auto of_output = gradient.to(at::kFloat);
  const auto own = (of_output * output.to(at::kFloat)).sum(-1, true);
  const auto of_scores = weights * (of_output.matmul(made.value.transpose(-2, -1)) - own);
  const auto by_key = [&](const at::Tensor& of_queries) {
    return of_queries.unflatten(1, {key.size(1), query.size(1) / key.size(1)}).sum(2).to(key.scalar_type());
  };
  return {(of_scores.matmul(made.key) * made.scale).to(query.scalar_type()),
          by_key(of_scores.transpose(-2, -1).matmul(made.query)),
          by_key(weights.transpose(-2, -1).matmul(of_output))};
}

// Sparse tensors: what gradients of an embedding need.
at::Tensor coalesce(const at::Tensor& self) {
  const auto made =
      at::sparse_coo_tensor(self._indices().cpu(), self._values().cpu(), self.sizes(), at::kCPU).coalesce();
  return at::sparse_coo_tensor(made.indices().to(self.device()), made.values().to(self.device()),
                               self.sizes())
      ._coalesced_(true);
}

at::Tensor& add_to_dense(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  TORCH_CHECK(!self.is_sparse() && other.is_sparse() && other.sparse_dim() == 1,
              "simulated GPU: this sum of sparse tensors is not simulated");
  return self.index_add_(0, other._indices()[0], other._values(), alpha);
}

}  // namespace

void add_special_kernels() {
  static torch::Library dense(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  dense.impl("aten::copy_", copy_);
  dense.impl("aten::_fused_sdp_choice", choose_math);
  dense.impl("aten::_scaled_dot_product_flash_attention", flash_attention);
  dense.impl("aten::_scaled_dot_product_flash_attention_backward", flash_attention_backward);
  static torch::Library sparse(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA, __FILE__,
                               __LINE__);
  sparse.impl("aten::_coalesce", coalesce);
  sparse.impl("aten::add_.Tensor", add_to_dense);
}

}  // namespace lockstep::simulated
