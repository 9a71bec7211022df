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

std::string first_bad_gradient(const torch::nn::Module& module) {
  std::string first;
  const auto visit = [&](const std::string& name, const at::Tensor& parameter) {
    const auto& gradient = parameter.grad();
    if (first.empty() && gradient.defined() && !gradient.isfinite().all().item<bool>()) first = name;
  };
  if (const auto sharded = FSDPModule::find(module)) {
    for (const auto& [name, rows] : sharded->named_parameters()) visit(name, rows);
  } else {
    for (const auto& parameter : module.named_parameters()) visit(parameter.key(), parameter.value());
  }
  if (first.empty()) return "all gradients are finite";
  return "the first parameter whose gradient is not finite is " + first;
}

}  // namespace

void throw_non_finite(double loss, const torch::nn::Module& module, std::int64_t step,
                      const std::optional<ProcessGroup>& group) {
  const auto own =
      fmt::format("rank {}: loss {}, {}", group ? group->rank() : 0, loss, first_bad_gradient(module));
  const auto all = group ? group->all_gather_object(own) : std::vector{own};
  throw_error<NonFiniteError>("step {}: a loss or a gradient is not finite; {}", step, fmt::join(all, "; "));
}

}  // namespace training

void finite_or_stop(const at::Tensor& loss, const torch::nn::Module& module, std::int64_t step,
                    const std::optional<ProcessGroup>& process_group) {
  const auto group = runtime::group_or_default(process_group);
  const auto number = loss.item<double>();
  const double is_bad = std::isfinite(number) ? 0 : 1;
  if (metrics::sum_over_ranks({is_bad}, group).front() > 0)
    training::throw_non_finite(number, module, step, group);
}

}  // namespace lockstep
