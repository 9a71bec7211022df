// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <lockstep/metrics/metrics.h>
#include <lockstep/serialize/torch_file.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "runtime/run.h"

namespace lockstep::metrics {

// Metrics of predicted classes.
namespace {

bool are_classes(const at::Tensor& scores) {
  return at::isIntegralType(scores.scalar_type(), /*includeBool=*/true);
}

void check_shapes(const char* metric, const at::Tensor& scores, const at::Tensor& targets) {
  const bool fits = are_classes(scores)
                        ? scores.sizes() == targets.sizes()
                        : scores.dim() > 0 && scores.sizes().slice(0, scores.dim() - 1) == targets.sizes();
  if (!fits || !are_classes(targets))
    throw_error<ArgumentError>(
        "{}: {} scores of shape {} for {} targets of shape {}; pass scores [..., classes] or int64 "
        "predictions [...], and int64 targets [...]",
        metric, c10::toString(scores.scalar_type()), c10::str(scores.sizes()),
        c10::toString(targets.scalar_type()), c10::str(targets.sizes()));
}

at::Tensor predicted(const at::Tensor& scores) { return are_classes(scores) ? scores : scores.argmax(-1); }

// Whether the target is among the k highest scores. Of equal scores the last class is the highest, as in
// scikit-learn.
at::Tensor are_among_highest(std::int64_t k, const at::Tensor& scores, const at::Tensor& targets) {
  const auto classes = at::arange(scores.size(-1), targets.options().dtype(at::kLong));
  const auto own = targets.unsqueeze(-1);
  const auto own_score =
      at::where(classes.eq(own), scores, -std::numeric_limits<double>::infinity()).amax(-1, /*keepdim=*/true);
  const auto lower = scores.lt(own_score).logical_or(scores.eq(own_score).logical_and(classes.le(own)));
  const auto is_class = targets.ge(0).logical_and(targets.lt(scores.size(-1)));
  return lower.logical_not().sum(-1).lt(k).logical_and(is_class);
}

at::Tensor quotient_or_zero(const at::Tensor& dividend, const at::Tensor& divisor) {
  return at::where(divisor.eq(0), 0.0, dividend / divisor);
}

// What each class needs, float64 [num_classes].
struct Counts {
  at::Tensor hits, targets, predictions;
};

Counts counts_of(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || matrix.size(0) != matrix.size(1))
    throw_error<ArgumentError>("a confusion matrix is square, not of shape {}", c10::str(matrix.sizes()));
  const auto counts = matrix.to(at::kCPU, at::kDouble);
  return {counts.diagonal(), counts.sum(1), counts.sum(0)};
}

double averaged(const at::Tensor& of_classes, const Counts& counts, Average average) {
  const auto occurs = (counts.targets + counts.predictions).gt(0).to(at::kDouble);
  const auto weights = average == Average::macro ? occurs : counts.targets;
  return quotient_or_zero((of_classes * weights).sum(), weights.sum()).item<double>();
}

// Over all samples, precision, recall and F1 are the accuracy.
double score(const at::Tensor& matrix, Average average, at::Tensor ClassScores::*which) {
  const auto counts = counts_of(matrix);
  if (average == Average::micro)
    return quotient_or_zero(counts.hits.sum(), counts.targets.sum()).item<double>();
  return averaged(class_scores(matrix).*which, counts, average);
}

}  // namespace

Accuracy::Accuracy(const AccuracyOptions& options, std::source_location where)
    : Sums(2, at::kLong), top_k_(options.top_k) {
  const CallerPlace place(where);
  if (top_k_ < 1) throw_error<ArgumentError>("Accuracy: top_k = {}; give at least 1", top_k_);
}

void Accuracy::update(const at::Tensor& scores, const at::Tensor& targets, std::source_location where) {
  const CallerPlace place(where);
  check_shapes("Accuracy", scores, targets);
  if (top_k_ > 1 && (are_classes(scores) || scores.size(-1) < top_k_))
    throw_error<ArgumentError>(
        "Accuracy: top_k = {} needs scores of at least as many classes; they have shape {}", top_k_,
        c10::str(scores.sizes()));
  const auto hits =
      top_k_ == 1 ? predicted(scores).eq(targets) : are_among_highest(top_k_, scores.detach(), targets);
  const auto hit_count = hits.sum();
  add(at::stack({hit_count, at::full_like(hit_count, targets.numel())}));
}

double Accuracy::compute(const std::optional<ProcessGroup>& process_group, std::source_location where) const {
  const auto sums = total(process_group, where).to(at::kDouble);
  return (sums[0] / sums[1]).item<double>();
}

ConfusionMatrix::ConfusionMatrix(std::int64_t num_classes, std::source_location where)
    : Sums(num_classes * num_classes + 1, at::kLong), num_classes_(num_classes) {
  const CallerPlace place(where);
  if (num_classes < 1)
    throw_error<ArgumentError>("ConfusionMatrix: num_classes = {}; give at least 1", num_classes);
}

// The last sum counts samples outside of the classes, which compute() reports: update() would have to wait
// for the device.
void ConfusionMatrix::update(const at::Tensor& scores, const at::Tensor& targets,
                             std::optional<std::int64_t> ignore_index, std::source_location where) {
  const CallerPlace place(where);
  check_shapes("ConfusionMatrix", scores, targets);
  if (!are_classes(scores) && scores.size(-1) != num_classes_)
    throw_error<ArgumentError>("ConfusionMatrix: scores of shape {} for {} classes", c10::str(scores.sizes()),
                               num_classes_);
  const auto classes = predicted(scores.detach()).to(at::kLong);
  const auto is_class = [&](const at::Tensor& tensor) {
    return tensor.ge(0).logical_and(tensor.lt(num_classes_));
  };
  const auto cells = at::where(is_class(targets).logical_and(is_class(classes)),
                               targets.to(at::kLong) * num_classes_ + classes, num_classes_ * num_classes_);
  auto weights = at::ones_like(cells);
  if (ignore_index) weights = targets.ne(*ignore_index).to(at::kLong);
  add(at::zeros({num_classes_ * num_classes_ + 1}, cells.options())
          .scatter_add_(0, cells.flatten(), weights.flatten()));
}

at::Tensor ConfusionMatrix::compute(const std::optional<ProcessGroup>& process_group,
                                    std::source_location where) const {
  const CallerPlace place(where);
  const auto sums = total(process_group, where);
  if (const auto outside = sums[-1].item<std::int64_t>(); outside != 0)
    throw_error<ArgumentError>("ConfusionMatrix: {} samples have a target or a prediction outside of 0 .. {}",
                               outside, num_classes_ - 1);
  return sums.slice(0, 0, -1).reshape({num_classes_, num_classes_}).clone();
}

ClassScores class_scores(const at::Tensor& confusion_matrix, std::source_location where) {
  const CallerPlace place(where);
  const auto counts = counts_of(confusion_matrix);
  return {quotient_or_zero(counts.hits, counts.predictions), quotient_or_zero(counts.hits, counts.targets),
          quotient_or_zero(2 * counts.hits, counts.targets + counts.predictions), counts.targets.clone()};
}

double precision(const at::Tensor& confusion_matrix, Literal<Average> average, std::source_location where) {
  const CallerPlace place(where);
  return score(confusion_matrix, average, &ClassScores::precision);
}

double recall(const at::Tensor& confusion_matrix, Literal<Average> average, std::source_location where) {
  const CallerPlace place(where);
  return score(confusion_matrix, average, &ClassScores::recall);
}

double f1_score(const at::Tensor& confusion_matrix, Literal<Average> average, std::source_location where) {
  const CallerPlace place(where);
  return score(confusion_matrix, average, &ClassScores::f1);
}

double balanced_accuracy(const at::Tensor& confusion_matrix, std::source_location where) {
  const CallerPlace place(where);
  const auto counts = counts_of(confusion_matrix);
  const auto occurs = counts.targets.gt(0);
  const auto recalls = quotient_or_zero(counts.hits, counts.targets);
  return quotient_or_zero(recalls.sum(), occurs.sum().to(at::kDouble)).item<double>();
}

namespace {

at::Tensor of_all_ranks(const std::vector<at::Tensor>& own, at::ScalarType dtype,
                        const std::optional<ProcessGroup>& group) {
  const auto joined = own.empty() ? at::empty({0}, dtype) : at::cat(own).contiguous();
  if (!group) return joined;
  std::vector<at::Tensor> parts;
  for (const auto& part : group->all_gather_object(save_bytes(Value(joined))))
    parts.push_back(load_bytes(part).as_tensor());
  return at::cat(parts);
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

void Auroc::update(const at::Tensor& scores, const at::Tensor& targets, std::source_location where) {
  const CallerPlace place(where);
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

double Auroc::compute(const std::optional<ProcessGroup>& process_group, std::source_location where) const {
  const auto state = state_dict(process_group, where);
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

Dict Auroc::state_dict(const std::optional<ProcessGroup>& process_group, std::source_location where) const {
  const auto group = runtime::group_or_default(process_group, "metric Auroc");
  const comm::CallSite site(where, "scores of a metric");
  return joined(group);
}

Dict Auroc::own_state_dict() const { return joined(std::nullopt); }

Dict Auroc::joined(const std::optional<ProcessGroup>& group) const {
  const auto targets = of_all_ranks(targets_, at::kLong, group);
  const auto scores = of_all_ranks(scores_, at::kDouble, group);
  if (targets.numel() == 0 || scores.numel() == targets.numel())
    return {{"scores", scores}, {"targets", targets}};
  return {{"scores", scores.reshape({targets.numel(), -1})}, {"targets", targets}};
}

void Auroc::load_own_state_dict(const Dict& state_dict) {
  reset();
  const auto& targets = state_dict.at("targets").as_tensor();
  if (targets.numel() != 0) update(state_dict.at("scores").as_tensor(), targets);
}

void Auroc::load_state_dict(const Dict& state_dict, const std::optional<ProcessGroup>& process_group,
                            std::source_location where) {
  const CallerPlace place(where);
  const auto& scores = state_dict.at("scores").as_tensor();
  const auto& targets = state_dict.at("targets").as_tensor();
  const auto group = runtime::group_or_default(process_group, "metric Auroc");
  reset();
  if ((!group || group->rank() == 0) && targets.numel() != 0) update(scores, targets);
}

}  // namespace lockstep::metrics
