// SPDX-License-Identifier: BSD-3-Clause
// Metrics of predicted classes.
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <lockstep/metrics/metrics.h>

#include "base/throw_error.h"

namespace lockstep::metrics {
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

Accuracy::Accuracy(std::int64_t top_k) : Sums(2, at::kLong), top_k_(top_k) {
  if (top_k < 1) throw_error<ArgumentError>("Accuracy: top_k = {}; give at least 1", top_k);
}

void Accuracy::update(const at::Tensor& scores, const at::Tensor& targets) {
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

double Accuracy::compute(const std::optional<ProcessGroup>& process_group) const {
  const auto sums = total(process_group).to(at::kDouble);
  return (sums[0] / sums[1]).item<double>();
}

ConfusionMatrix::ConfusionMatrix(std::int64_t num_classes)
    : Sums(num_classes * num_classes + 1, at::kLong), num_classes_(num_classes) {
  if (num_classes < 1)
    throw_error<ArgumentError>("ConfusionMatrix: num_classes = {}; give at least 1", num_classes);
}

// The last sum counts samples outside of the classes, which compute() reports: update() would have to wait
// for the device.
void ConfusionMatrix::update(const at::Tensor& scores, const at::Tensor& targets,
                             std::optional<std::int64_t> ignore_index) {
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

at::Tensor ConfusionMatrix::compute(const std::optional<ProcessGroup>& process_group) const {
  const auto sums = total(process_group);
  if (const auto outside = sums[-1].item<std::int64_t>(); outside != 0)
    throw_error<ArgumentError>("ConfusionMatrix: {} samples have a target or a prediction outside of 0 .. {}",
                               outside, num_classes_ - 1);
  return sums.slice(0, 0, -1).reshape({num_classes_, num_classes_}).clone();
}

ClassScores class_scores(const at::Tensor& confusion_matrix) {
  const auto counts = counts_of(confusion_matrix);
  return {quotient_or_zero(counts.hits, counts.predictions), quotient_or_zero(counts.hits, counts.targets),
          quotient_or_zero(2 * counts.hits, counts.targets + counts.predictions), counts.targets.clone()};
}

double precision(const at::Tensor& confusion_matrix, Average average) {
  return score(confusion_matrix, average, &ClassScores::precision);
}

double recall(const at::Tensor& confusion_matrix, Average average) {
  return score(confusion_matrix, average, &ClassScores::recall);
}

double f1_score(const at::Tensor& confusion_matrix, Average average) {
  return score(confusion_matrix, average, &ClassScores::f1);
}

double balanced_accuracy(const at::Tensor& confusion_matrix) {
  const auto counts = counts_of(confusion_matrix);
  const auto occurs = counts.targets.gt(0);
  const auto recalls = quotient_or_zero(counts.hits, counts.targets);
  return quotient_or_zero(recalls.sum(), occurs.sum().to(at::kDouble)).item<double>();
}

}  // namespace lockstep::metrics
