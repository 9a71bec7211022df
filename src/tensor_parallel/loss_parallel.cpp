// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <lockstep/tensor_parallel/layers.h>

#include "base/throw_error.h"
#include "nn/record.h"
#include "tensor_parallel/cut.h"

namespace lockstep::tensor_parallel {
namespace {

using at::Tensor;
using Options = torch::nn::functional::CrossEntropyFuncOptions;

struct ClassRange {
  std::int64_t first, count, all;
};

// The tensors with values for each sample, and one number, reduced by one call. They keep their shapes.
struct Reduced {
  std::vector<Tensor> tensors;
  double number;
};
Reduced all_reduced(const std::vector<Tensor>& tensors, double number, ReduceOp op, const Ranks& ranks) {
  std::vector<Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  flat.push_back(at::full({1}, number, flat.front().options()));
  const auto all = at::cat(flat);
  ranks.group.all_reduce(all, op, ranks.where);
  Reduced result{.tensors = {}, .number = all[-1].item<double>()};
  std::int64_t begin = 0;
  for (const auto& tensor : tensors) {
    result.tensors.push_back(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return result;
}

// What forward leaves for backward.
struct Loss {
  Tensor log_probabilities;  // of this rank's classes
  Tensor safe_target;        // with a dimension of one class; where ignored: 0
  Tensor is_valid;           // the same, not ignored
  Tensor is_elsewhere;       // the same, on other ranks
  Tensor weight;             // of all classes, shaped to fit, or undefined
  Tensor total_weight;       // of the mean
  std::int64_t dim;
  ClassRange classes;

  Tensor own_weight() const { return weight.narrow(dim, classes.first, classes.count); }
  Tensor own_target() const { return (safe_target - classes.first).masked_fill_(is_elsewhere, 0); }
  Tensor target_weight() const {
    auto sizes = safe_target.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = classes.all;
    return weight.expand(sizes).gather(dim, safe_target);
  }
};

void check(const Tensor& input, const Tensor& target, const Ranks& ranks) {
  const auto dim = input.dim() == 1 ? 0 : 1;
  auto expected = input.sizes().vec();
  if (!expected.empty()) expected.erase(expected.begin() + dim);
  if (input.dim() > 0 && input.is_floating_point() && target.scalar_type() == at::kLong &&
      target.sizes() == at::IntArrayRef(expected))
    return;
  throw_error<ArgumentError>(
      "{}:{}: loss_parallel(): input of shape {} and target of shape {}; it needs [batch, classes, ...] of "
      "floating point and class indices [batch, ...] of int64",
      ranks.where.file_name(), ranks.where.line(), fmt::join(input.sizes(), "x"),
      fmt::join(target.sizes(), "x"));
}

void check_classes(const Loss& loss, const Tensor& given_weight, const Ranks& ranks) {
  const auto where = fmt::format("{}:{}: loss_parallel()", ranks.where.file_name(), ranks.where.line());
  if (given_weight.defined() && given_weight.numel() != loss.classes.all) {
    throw_error<ArgumentError>("{}: weight has {} elements, but there are {} classes on all ranks", where,
                               given_weight.numel(), loss.classes.all);
  }
  if (!loss.safe_target.is_cpu() || loss.safe_target.numel() == 0) return;
  const auto least = loss.safe_target.min().item<std::int64_t>();
  const auto most = loss.safe_target.max().item<std::int64_t>();
  if (least < 0 || most >= loss.classes.all) {
    throw_error<ArgumentError>("{}: target has the class {}, but there are {}", where,
                               least < 0 ? least : most, loss.classes.all);
  }
}

Tensor reduced(const Tensor& values, const Loss& loss, const Options& options) {
  const auto valid = at::where(loss.is_valid, values, 0).squeeze(loss.dim);
  if (std::holds_alternative<torch::enumtype::kNone>(options.reduction())) return valid;
  const auto sum = valid.sum();
  return std::holds_alternative<torch::enumtype::kSum>(options.reduction()) ? sum : sum / loss.total_weight;
}

Tensor gradient_of(const Loss& loss, const Tensor& output_gradient, const Options& options) {
  if (c10::GradMode::is_enabled())
    throw_error<Error>("loss_parallel(): backward with create_graph is not supported");
  auto gradient = output_gradient.to(loss.log_probabilities.scalar_type());
  if (std::holds_alternative<torch::enumtype::kMean>(options.reduction()))
    gradient = gradient / loss.total_weight;
  if (gradient.dim() > 0) gradient = gradient.unsqueeze(loss.dim);
  gradient = at::where(loss.is_valid, gradient, 0);
  const auto probabilities = loss.log_probabilities.exp();
  auto own = at::zeros_like(loss.log_probabilities);
  if (loss.classes.count > 0)
    own.scatter_(loss.dim, loss.own_target(), loss.is_elsewhere.to(own.scalar_type()) - 1.0);
  own.add_(probabilities).mul_(loss.weight.defined() ? gradient * loss.target_weight() : gradient);
  const auto smoothing = options.label_smoothing();
  if (smoothing == 0) return own;
  const auto smooth = loss.weight.defined() ? probabilities * loss.weight.sum() - loss.own_weight()
                                            : probabilities * loss.classes.all - 1;
  return own * (1 - smoothing) + smooth * gradient * (smoothing / static_cast<double>(loss.classes.all));
}

}  // namespace

Tensor loss_parallel(const Tensor& input, const Tensor& target, const DeviceMesh& mesh,
                     const Options& options, std::source_location where) {
  const auto ranks = ranks_of(mesh, "loss_parallel()", where);
  check(input, target, ranks);
  Loss loss;
  loss.dim = input.dim() == 1 ? 0 : 1;
  Tensor result;
  {
    const c10::NoGradGuard no_gradients;
    const auto is_half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
    const auto logits = input.detach().to(is_half ? at::kFloat : input.scalar_type()).contiguous();
    const auto count = logits.size(loss.dim);
    auto sizes = logits.sizes().vec();
    sizes[static_cast<std::size_t>(loss.dim)] = 1;
    const auto own_max = count > 0
                             ? logits.amax(loss.dim, true)
                             : at::full(sizes, -std::numeric_limits<double>::infinity(), logits.options());
    const auto max = all_reduced({own_max}, static_cast<double>(count), ReduceOp::MAX, ranks);
    const auto shifted = logits - max.tensors[0];
    const auto sum = shifted.exp().sum(loss.dim, true);
    ranks.group.all_reduce(sum, ReduceOp::SUM, where);
    loss.log_probabilities = shifted - sum.log();

    loss.classes = {
        .first = static_cast<std::int64_t>(max.number) * ranks.group.rank(), .count = count, .all = 0};
    const auto unsqueezed = target.unsqueeze(loss.dim);
    loss.is_valid = unsqueezed != options.ignore_index();
    loss.safe_target = at::where(loss.is_valid, unsqueezed, 0);
    loss.is_elsewhere =
        (loss.safe_target < loss.classes.first).logical_or_(loss.safe_target >= loss.classes.first + count);
    const bool smooths = options.label_smoothing() > 0;
    auto at_target = at::zeros(sizes, logits.options());
    if (count > 0) at_target = loss.log_probabilities.gather(loss.dim, loss.own_target());
    std::vector<Tensor> parts{at_target.masked_fill_(loss.is_elsewhere, 0)};
    auto& weight = options.weight();
    if (weight.defined()) {
      std::vector<std::int64_t> shape(sizes.size(), 1);
      shape[static_cast<std::size_t>(loss.dim)] = weight.numel();
      loss.weight = weight.detach().to(logits.scalar_type()).view(shape);
    }
    if (smooths)
      parts.push_back(
          (loss.weight.defined() ? loss.log_probabilities * loss.own_weight() : loss.log_probabilities)
              .sum(loss.dim, true));
    const auto sums = all_reduced(parts, static_cast<double>(count), ReduceOp::SUM, ranks);
    loss.classes.all = static_cast<std::int64_t>(sums.number);
    check_classes(loss, weight, ranks);
    loss.total_weight = loss.weight.defined() ? at::where(loss.is_valid, loss.target_weight(), 0).sum()
                                              : loss.is_valid.sum().to(logits.scalar_type());
    auto nll = -sums.tensors[0];
    if (loss.weight.defined()) nll = nll * loss.target_weight();
    result = reduced(nll, loss, options);
    if (smooths) {
      const auto share = options.label_smoothing() / static_cast<double>(loss.classes.all);
      result = result * (1 - options.label_smoothing()) + reduced(-sums.tensors[1], loss, options) * share;
    }
    result = result.to(input.scalar_type());
  }
  return nn::functional::record("LossParallelBackward", {input}, {result},
                                [loss, options, dtype = input.scalar_type()](std::vector<Tensor> gradients) {
                                  return std::vector{gradient_of(loss, gradients[0], options).to(dtype)};
                                })[0];
}

}  // namespace lockstep::tensor_parallel
