// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/ScalarType.h>

#include <lockstep/metrics/metrics.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep::metrics {

// Means of numbers, and rates.
namespace {

// {sum, count} without waiting for the device of `sum`.
at::Tensor sum_and_count(const at::Tensor& sum, const at::Tensor& count) {
  return at::stack({sum.reshape({}).to(at::kDouble), count.reshape({}).to(sum.device(), at::kDouble)});
}

// A mean of no samples is NaN and counts as 0.
at::Tensor sum_and_count(const char* metric, const at::Tensor& mean, std::int64_t n) {
  if (mean.numel() != 1)
    throw_error<ArgumentError>("{}: the value has shape {}; pass one element", metric,
                               c10::str(mean.sizes()));
  if (n < 0) throw_error<ArgumentError>("{}: n = {}; give 0 or more samples", metric, n);
  const auto value = mean.detach().to(at::kDouble);
  const auto count = at::scalar_tensor(static_cast<double>(n), value.options());
  return sum_and_count(n == 0 ? at::zeros_like(value) : value * n, count);
}

double quotient(const at::Tensor& sum_and_count) {
  const auto* numbers = sum_and_count.const_data_ptr<double>();
  return numbers[0] / numbers[1];  // NaN for 0 / 0
}

}  // namespace

AverageMeter::AverageMeter() : Sums(2, at::kDouble) { reset(); }

void AverageMeter::update(double value, std::int64_t n, std::source_location where) {
  update(at::scalar_tensor(value, at::kDouble), n, where);
}

void AverageMeter::update(const at::Tensor& value, std::int64_t n, std::source_location where) {
  const CallerPlace place(where);
  add(sum_and_count("AverageMeter", value, n));
  last_ = value.detach().clone();
}

double AverageMeter::val() const { return last_.item<double>(); }
double AverageMeter::avg() const { return quotient(local()); }
std::int64_t AverageMeter::count() const { return static_cast<std::int64_t>(local()[1].item<double>()); }

double AverageMeter::compute(const std::optional<ProcessGroup>& process_group,
                             std::source_location where) const {
  return quotient(total(process_group, where));
}

void AverageMeter::reset() {
  Sums::reset();
  last_ = at::scalar_tensor(std::nan(""), at::kDouble);
}

double Throughput::rate() const {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  return static_cast<double>(samples_) / seconds.count();
}

double Throughput::compute(const std::optional<ProcessGroup>& process_group,
                           std::source_location where) const {
  return reduce_value(rate(), ReduceOp::SUM, process_group, where);
}

MeanSquaredError::MeanSquaredError() : Sums(2, at::kDouble) {}

void MeanSquaredError::update(const at::Tensor& predictions, const at::Tensor& targets,
                              std::source_location where) {
  const CallerPlace place(where);
  if (predictions.sizes() != targets.sizes())
    throw_error<ArgumentError>("MeanSquaredError: predictions of shape {} for targets of shape {}",
                               c10::str(predictions.sizes()), c10::str(targets.sizes()));
  const auto difference = predictions.detach().to(at::kDouble) - targets.to(at::kDouble);
  const auto count = at::scalar_tensor(static_cast<double>(targets.numel()), difference.options());
  add(sum_and_count(difference.square().sum(), count));
}

double MeanSquaredError::compute(const std::optional<ProcessGroup>& process_group,
                                 std::source_location where) const {
  return quotient(total(process_group, where));
}

Perplexity::Perplexity(std::int64_t ignore_index) : Sums(2, at::kDouble), ignore_index_(ignore_index) {}

void Perplexity::update(const at::Tensor& logits, const at::Tensor& targets, std::source_location where) {
  const CallerPlace place(where);
  if (logits.dim() == 0 || logits.sizes().slice(0, logits.dim() - 1) != targets.sizes() ||
      targets.scalar_type() != at::kLong)
    throw_error<ArgumentError>(
        "Perplexity: logits of shape {} for {} targets of shape {}; logits have one more "
        "dimension, the vocabulary, and targets are int64",
        c10::str(logits.sizes()), c10::toString(targets.scalar_type()), c10::str(targets.sizes()));
  const auto counted = targets.ne(ignore_index_);
  const auto classes = at::where(counted, targets, at::zeros_like(targets)).unsqueeze(-1);
  const auto dtype = at::promote_types(logits.scalar_type(), at::kFloat);
  const auto likelihood = at::log_softmax(logits.detach(), -1, dtype).gather(-1, classes).squeeze(-1);
  const auto loss = at::where(counted, -likelihood.to(at::kDouble), 0.0);
  add(sum_and_count(loss.sum(), counted.sum()));
}

void Perplexity::update_loss(const at::Tensor& mean_loss, std::int64_t n, std::source_location where) {
  const CallerPlace place(where);
  add(sum_and_count("Perplexity", mean_loss, n));
}

double Perplexity::compute(const std::optional<ProcessGroup>& process_group,
                           std::source_location where) const {
  return std::exp(quotient(total(process_group, where)));
}

}  // namespace lockstep::metrics

namespace lockstep {

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options, std::source_location where)
    : options_(options) {
  const CallerPlace place(where);
  if (options_.patience < 1)
    throw_error<ArgumentError>("EarlyStopping: patience = {}; give at least 1", options_.patience);
  if (!(options_.min_delta >= 0))
    throw_error<ArgumentError>("EarlyStopping: min_delta = {}; give 0 or more", options_.min_delta);
}

bool EarlyStopping::step(double metric) {
  const double gain = options_.higher_is_better ? metric - best_.value_or(0) : best_.value_or(0) - metric;
  const bool is_better = best_ ? gain > options_.min_delta : metric == metric;
  if (is_better) best_ = metric;
  bad_validations_ = is_better ? 0 : bad_validations_ + 1;
  return stops();
}

Dict EarlyStopping::state_dict() const {
  return {{"best", best_ ? Value(*best_) : Value()}, {"bad_validations", bad_validations_}};
}

void EarlyStopping::load_state_dict(const Dict& state_dict) {
  const auto& best = state_dict.at("best");
  const auto bad_validations = state_dict.at("bad_validations").as_int();
  best_ = best.is<None>() ? std::nullopt : std::optional(best.as_double());
  bad_validations_ = bad_validations;
}

}  // namespace lockstep
