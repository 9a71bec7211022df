// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "base/throw_error.h"
#include "fsdp/sharded_state_dict.h"

namespace lockstep::fsdp {
namespace {

bool have_same_ranks(const std::vector<Cut>& left, const std::vector<Cut>& right) {
  return std::ranges::equal(
      left, right, [](const Cut& a, const Cut& b) { return a.ranks.backend() == b.ranks.backend(); });
}

}  // namespace

double clip_grad_norm(const StateEntries& entries, double max_norm, const ClipGradNormOptions& options,
                      std::source_location where) {
  const bool is_max = std::isinf(options.norm_type);
  const auto add = [&](double& total, double part) { total = is_max ? std::max(total, part) : total + part; };
  std::vector<at::Tensor> gradients;
  std::vector<std::pair<const std::vector<Cut>*, double>> parts;  // for each list of groups
  for (const auto& entry : entries.parameters) {
    auto part =
        std::ranges::find_if(parts, [&](const auto& each) { return have_same_ranks(*each.first, entry.cuts); });
    if (part == parts.end()) part = parts.insert(parts.end(), {&entry.cuts, 0.0});
    const auto gradient = entry.part.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    gradients.push_back(gradient);
    const auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    const auto norm =
        at::linalg_vector_norm(values, options.norm_type, std::nullopt, false, at::kDouble).item<double>();
    add(part->second, is_max ? norm : std::pow(norm, options.norm_type));
  }
  double total = 0;
  for (const auto& [cuts, own] : parts) {
    const auto sum = at::full({1}, own, at::kDouble);
    for (auto i = cuts->size(); i-- > 0;)
      (*cuts)[i].ranks.all_reduce(sum, is_max ? ReduceOp::MAX : ReduceOp::SUM, where);
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

}  // namespace lockstep::fsdp
