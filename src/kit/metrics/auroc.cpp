// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <lockstep/metrics/metrics.h>

#include "base/throw_error.h"
#include "runtime/run.h"

namespace lockstep::metrics {
namespace {

struct Samples {
  at::Tensor scores;   // float64 [n] or [n, classes]
  at::Tensor targets;  // int64 [n]
};

at::Tensor joined(const std::vector<at::Tensor>& parts, at::ScalarType dtype) {
  return parts.empty() ? at::empty({0}, dtype) : at::cat(parts).contiguous();
}

std::string to_bytes(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

at::Tensor from_bytes(const std::string& bytes, at::ScalarType dtype) {
  auto tensor = at::empty({static_cast<std::int64_t>(bytes.size() / c10::elementSize(dtype))}, dtype);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor of_all_ranks(const at::Tensor& tensor, const std::optional<ProcessGroup>& group) {
  if (!group) return tensor;
  std::string all;
  for (const auto& part : group->all_gather_object(to_bytes(tensor))) all += part;
  return from_bytes(all, tensor.scalar_type());
}

// The share of pairs of a positive and a negative sample that the scores order correctly, by the positives'
// ranks among all scores.
double area(const double* scores, std::int64_t stride, const at::Tensor& targets, std::int64_t positive) {
  const auto* target = targets.const_data_ptr<std::int64_t>();
  std::vector<std::pair<double, bool>> samples;
  for (std::int64_t i = 0; i < targets.numel(); ++i)
    samples.emplace_back(scores[i * stride], target[i] == positive);
  std::ranges::sort(samples);
  double ordered_pairs = 0;
  double negatives = 0;
  double positives = 0;
  for (auto first = samples.begin(); first != samples.end();) {
    const auto last =
        std::find_if(first, samples.end(), [&](const auto& each) { return each.first != first->first; });
    const auto tied =
        static_cast<double>(std::count_if(first, last, [](const auto& each) { return each.second; }));
    const auto others = static_cast<double>(last - first) - tied;
    ordered_pairs += tied * (negatives + others / 2);
    positives += tied;
    negatives += others;
    first = last;
  }
  return ordered_pairs / (positives * negatives);
}

}  // namespace

void Auroc::update(const at::Tensor& scores, const at::Tensor& targets) {
  const bool is_binary = scores.dim() == 1;
  if ((!is_binary && (scores.dim() != 2 || scores.size(1) < 2)) || targets.dim() != 1 ||
      scores.size(0) != targets.size(0) || !at::isIntegralType(targets.scalar_type(), /*includeBool=*/true))
    throw_error<ArgumentError>(
        "Auroc: scores of shape {} for {} targets of shape {}; pass [n] or [n, classes] for int64 [n]",
        c10::str(scores.sizes()), c10::toString(targets.scalar_type()), c10::str(targets.sizes()));
  if (!scores_.empty() && scores.sizes().slice(1) != scores_.front().sizes().slice(1))
    throw_error<ArgumentError>("Auroc: scores of shape {} after scores of shape {}", c10::str(scores.sizes()),
                               c10::str(scores_.front().sizes()));
  auto host_scores =
      scores.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  auto host_targets = targets.to(at::kCPU, at::kLong, /*non_blocking=*/false, /*copy=*/true);
  if (host_scores.isnan().any().item<bool>()) throw_error<ArgumentError>("Auroc: a score is NaN");
  const auto classes = is_binary ? 2 : scores.size(1);
  if (host_targets.lt(0).logical_or(host_targets.ge(classes)).any().item<bool>())
    throw_error<ArgumentError>("Auroc: a target is outside of 0 .. {}", classes - 1);
  scores_.push_back(std::move(host_scores));
  targets_.push_back(std::move(host_targets));
}

double Auroc::compute(const std::optional<ProcessGroup>& process_group) const {
  const auto state = state_dict(process_group);
  const auto& scores = state.at("scores").as_tensor();
  const auto& targets = state.at("targets").as_tensor();
  const auto* numbers = scores.const_data_ptr<double>();
  if (targets.numel() == 0) return std::nan("");
  const auto classes = scores.numel() / targets.numel();
  if (classes == 1) return area(numbers, 1, targets, 1);
  double sum = 0;
  for (std::int64_t i = 0; i < classes; ++i) sum += area(numbers + i, classes, targets, i);
  return sum / static_cast<double>(classes);
}

void Auroc::reset() {
  scores_.clear();
  targets_.clear();
}

Dict Auroc::state_dict(const std::optional<ProcessGroup>& process_group) const {
  const auto group = runtime::group_or_default(process_group, "metric Auroc");
  const auto targets = of_all_ranks(joined(targets_, at::kLong), group);
  const auto scores = of_all_ranks(joined(scores_, at::kDouble), group);
  if (targets.numel() == 0 || scores.numel() == targets.numel())
    return {{"scores", scores}, {"targets", targets}};
  return {{"scores", scores.reshape({targets.numel(), -1})}, {"targets", targets}};
}

void Auroc::load_state_dict(const Dict& state_dict, const std::optional<ProcessGroup>& process_group) {
  const auto& scores = state_dict.at("scores").as_tensor();
  const auto& targets = state_dict.at("targets").as_tensor();
  const auto group = runtime::group_or_default(process_group, "metric Auroc");
  reset();
  if ((!group || group->rank() == 0) && targets.numel() != 0) update(scores, targets);
}

}  // namespace lockstep::metrics
