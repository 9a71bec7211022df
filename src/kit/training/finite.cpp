// SPDX-License-Identifier: BSD-3-Clause
#include "training/finite.h"

#include <cmath>

#include <fmt/ranges.h>

#include <lockstep/training/trainer.h>

#include "base/throw_error.h"
#include "metrics/sum_over_ranks.h"
#include "runtime/run.h"

namespace lockstep {
namespace training {
namespace {

bool is_finite(const at::Tensor& tensor) {
  const auto values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
  return values.isfinite().all().item<bool>();
}

// The first parameter for whose rows on this rank `tensor_of` is not finite; empty: none.
template <typename TensorOf>
std::string first_bad(const torch::nn::Module& module, TensorOf tensor_of) {
  std::string first;
  const auto visit = [&](const std::string& name, const at::Tensor& parameter) {
    const at::Tensor tensor = tensor_of(parameter);
    if (first.empty() && tensor.defined() && !is_finite(tensor)) first = name;
  };
  if (const auto sharded = FSDPModule::find(module)) {
    for (const auto& [name, rows] : sharded->named_parameters()) visit(name, rows);
  } else {
    for (const auto& parameter : module.named_parameters()) visit(parameter.key(), parameter.value());
  }
  return first;
}

std::string first_bad_gradient(const torch::nn::Module& module) {
  const auto first = first_bad(module, [](const at::Tensor& parameter) { return parameter.grad(); });
  return first.empty() ? "all gradients are finite"
                       : "the first parameter whose gradient is not finite is " + first;
}

std::vector<std::string> of_all_ranks(const std::string& own, const std::optional<ProcessGroup>& group) {
  return group ? group->all_gather_object(own) : std::vector{own};
}

}  // namespace

void throw_non_finite(double loss, const torch::nn::Module& module, std::int64_t step,
                      const std::optional<ProcessGroup>& group) {
  const auto own =
      fmt::format("rank {}: loss {}, {}", group ? group->rank() : 0, loss, first_bad_gradient(module));
  throw_error<NonFiniteError>("step {}: a loss or a gradient is not finite; {}", step,
                              fmt::join(of_all_ranks(own, group), "; "));
}

void check_parameters_finite(const torch::nn::Module& module, std::int64_t step,
                             const std::optional<ProcessGroup>& group) {
  const auto first = first_bad(module, [](const at::Tensor& parameter) { return parameter.detach(); });
  if (metrics::sum_over_ranks({first.empty() ? 0.0 : 1.0}, group).front() == 0) return;
  const auto own = fmt::format("rank {}: {}", group ? group->rank() : 0, first.empty() ? "none" : first);
  throw_error<NonFiniteError>(
      "step {}: parameters are not finite, so no checkpoint is saved; the first of {}", step,
      fmt::join(of_all_ranks(own, group), "; "));
}

}  // namespace training

void finite_or_stop(const at::Tensor& loss, const torch::nn::Module& module, std::int64_t step,
                    const std::optional<ProcessGroup>& process_group) {
  const auto group = runtime::group_or_default(process_group, "finite_or_stop()");
  const auto number = loss.item<double>();
  const double is_bad = std::isfinite(number) ? 0 : 1;
  if (metrics::sum_over_ranks({is_bad}, group).front() > 0)
    training::throw_non_finite(number, module, step, group);
}

}  // namespace lockstep
