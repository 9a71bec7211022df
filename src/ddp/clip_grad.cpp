// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/utils.h>

namespace lockstep {
namespace {

std::vector<at::Tensor> averaged_gradients(const DistributedDataParallelModule& ddp, const char* function) {
  const auto& group = ddp.process_group();
  const auto who = fmt::format("rank {} of {}: {}", group.rank(), group.size(), function);
  if (!ddp.optimizers().empty()) {
    throw Error(who +
                ": with optimizer_in_backward gradients are gone when backward ends; clip inside of it");
  }
  if (!ddp.has_averaged_gradients()) {
    throw Error(
        who +
        ": the gradients are not averaged over the ranks, since the last backward was made in no_sync() or "
        "did not finish; clip after the backward that reduces them");
  }
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : ddp.averaged_parameters()) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) gradient = gradient.coalesce();
    gradients.push_back(gradient.is_sparse() ? gradient.values() : gradient);
  }
  return gradients;
}

at::Tensor norm_of(const at::Tensor& tensor, double norm_type) {
  const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  return at::linalg_vector_norm(tensor, norm_type, at::OptionalIntArrayRef(), false,
                                half ? std::optional(at::kFloat) : std::nullopt);
}

}  // namespace

double clip_grad_norm_(const DistributedDataParallelModule& ddp, double max_norm,
                       const ClipGradNormOptions& options) {
  const c10::NoGradGuard no_grad;
  const auto gradients = averaged_gradients(ddp, "clip_grad_norm_");
  if (gradients.empty()) return 0;
  std::vector<at::Tensor> norms;
  for (const auto& gradient : gradients) {
    norms.push_back(norm_of(gradient, options.norm_type).to(gradients.front().device()));
  }
  const auto total = norm_of(at::stack(norms), options.norm_type);
  const auto norm = total.item().toDouble();
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    throw Error(
        fmt::format("clip_grad_norm_: the norm of the gradients is {}, so they cannot be clipped", norm));
  }
  const auto factor = at::clamp((total + 1e-6).reciprocal() * max_norm, std::nullopt, 1.0);
  for (const auto& gradient : gradients) gradient.mul_(factor.to(gradient.device()));
  return norm;
}

void clip_grad_value_(const DistributedDataParallelModule& ddp, double clip_value) {
  const c10::NoGradGuard no_grad;
  for (const auto& gradient : averaged_gradients(ddp, "clip_grad_value_")) {
    gradient.clamp_(-clip_value, clip_value);
  }
}

}  // namespace lockstep
