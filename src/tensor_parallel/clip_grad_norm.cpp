// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "base/throw_error.h"
#include "nn/named_tensors.h"
#include "tensor_parallel/parallel_parameter.h"

namespace lockstep {

double clip_grad_norm_(const torch::nn::Module& module, double max_norm, const ClipGradNormOptions& options,
                       std::source_location where) {
  const bool is_max = std::isinf(options.norm_type);
  const auto add = [&](double& total, double part) { total = is_max ? std::max(total, part) : total + part; };
  std::vector<at::Tensor> gradients;
  double total = 0;
  std::vector<std::pair<ProcessGroup, double>> parts;  // of each mesh
  for (const auto& [name, tensor] : nn::distinct(module.named_parameters())) {
    const auto* const parameter = tensor_parallel::parallel_parameter(tensor);
    if (parameter == nullptr && nn::guard_of(tensor) != nullptr)
      throw_error<ArgumentError>("{} is distributed by fully_shard(); use the FSDPModule that it returns",
                                 name);
    const bool is_cut = parameter != nullptr && parameter->cut();
    auto part = parts.end();
    if (is_cut) {
      const auto* const backend = parameter->group().backend().get();
      part = std::ranges::find_if(parts, [&](auto& each) { return each.first.backend().get() == backend; });
      if (part == parts.end()) part = parts.insert(part, {parameter->group(), 0.0});
    }
    const auto gradient = tensor.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    gradients.push_back(gradient);
    const auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    const auto norm =
        at::linalg_vector_norm(values, options.norm_type, std::nullopt, false, at::kDouble).item<double>();
    add(is_cut ? part->second : total, is_max ? norm : std::pow(norm, options.norm_type));
  }
  for (const auto& [ranks, own] : parts) {
    const auto sum = at::full({1}, own, at::kDouble);
    ranks.all_reduce(sum, is_max ? ReduceOp::MAX : ReduceOp::SUM, where);
    add(total, sum.item<double>());
  }
  if (!is_max) total = std::pow(total, 1.0 / options.norm_type);
  if (options.error_if_nonfinite && !std::isfinite(total))
    throw_error<NonFiniteError>("clip_grad_norm_: the norm of the gradients is {}, so they cannot be clipped",
                                total);
  const auto scale = max_norm / (total + 1e-6);
  if (scale < 1.0 || std::isnan(scale)) {
    for (auto& gradient : gradients) gradient.mul_(scale);
  }
  return total;
}

}  // namespace lockstep
