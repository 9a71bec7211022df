// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>

#include "base/throw_error.h"
#include "fsdp/sharded_state_dict.h"

namespace lockstep::fsdp {
namespace {

// The groups whose ranks have other elements, from the outermost on. Experts of other ranks count like parts
// of one parameter.
std::vector<ProcessGroup> groups_of(const ParameterEntry& entry) {
  std::vector<ProcessGroup> all;
  if (entry.expert_ranks) all.push_back(*entry.expert_ranks);
  for (const auto& cut : entry.cuts) all.push_back(cut.ranks);
  return all;
}

bool have_same_ranks(const std::vector<ProcessGroup>& left, const std::vector<ProcessGroup>& right) {
  return std::ranges::equal(
      left, right, [](const ProcessGroup& a, const ProcessGroup& b) { return a.backend() == b.backend(); });
}

}  // namespace

double gradient_norm(const std::vector<ParameterEntry>& parameters, double norm_type,
                     const ProcessGroup* others, std::source_location where) {
  const bool is_max = std::isinf(norm_type);
  const auto add = [&](double& total, double part) {
    if (!is_max) {
      total += part;
    } else if (part > total || std::isnan(part)) {  // std::max() drops NaN
      total = part;
    }
  };
  // Backends may drop NaN from a maximum, too.
  const auto over_ranks = [&](const ProcessGroup& ranks, double own) {
    const bool is_nan = std::isnan(own);
    const auto all = at::tensor({is_max && is_nan ? 0.0 : own, is_nan ? 1.0 : 0.0}, at::kDouble);
    ranks.all_reduce(all, is_max ? ReduceOp::MAX : ReduceOp::SUM, where);
    const bool has_nan = all[1].item<double>() > 0;
    return has_nan ? std::numeric_limits<double>::quiet_NaN() : all[0].item<double>();
  };
  std::vector<std::pair<std::vector<ProcessGroup>, double>> parts;  // for each list of groups
  for (const auto& entry : parameters) {
    const auto groups = groups_of(entry);
    auto part =
        std::ranges::find_if(parts, [&](const auto& each) { return have_same_ranks(each.first, groups); });
    if (part == parts.end()) part = parts.insert(parts.end(), {groups, 0.0});
    const auto gradient = entry.part.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    const auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    const auto norm =
        at::linalg_vector_norm(values, norm_type, std::nullopt, false, at::kDouble).item<double>();
    add(part->second, is_max ? norm : std::pow(norm, norm_type));
  }
  double total = 0;
  for (const auto& [groups, own] : parts) {
    auto sum = own;
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) sum = over_ranks(*group, sum);
    add(total, sum);
  }
  if (others != nullptr) total = over_ranks(*others, total);
  return is_max ? total : std::pow(total, 1.0 / norm_type);
}

void clip_gradients(const std::vector<ParameterEntry>& parameters, double norm, double max_norm,
                    const ClipGradNormOptions& options) {
  if (options.error_if_nonfinite && !std::isfinite(norm))
    throw_error<NonFiniteError>("clip_grad_norm_: the norm of the gradients is {}, so they cannot be clipped",
                                norm);
  const auto scale = max_norm / (norm + 1e-6);
  if (scale >= 1.0) return;
  for (const auto& entry : parameters)
    if (entry.part.grad().defined()) entry.part.mutable_grad().mul_(scale);
}

}  // namespace lockstep::fsdp

namespace lockstep {

double clip_grad_norm_(const torch::nn::Module& module, double max_norm, const ClipGradNormOptions& options,
                       std::source_location where) {
  const auto parameters = fsdp::entries_of(module, /*with_ignored=*/false).parameters;
  const auto norm = fsdp::gradient_norm(parameters, options.norm_type, nullptr, where);
  fsdp::clip_gradients(parameters, norm, max_norm, options);
  return norm;
}

}  // namespace lockstep
