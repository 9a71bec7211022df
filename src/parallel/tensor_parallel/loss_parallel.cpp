// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <lockstep/tensor_parallel/parallelize_module.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "intercept/record.h"
#include "tensor_parallel/cut.h"

namespace lockstep::tensor_parallel {
namespace {

using at::Tensor;
using Options = torch::nn::functional::CrossEntropyFuncOptions;

struct ClassRange {
  std::int64_t first, count, all;
};

std::vector<std::int64_t> sizes_of_one_class(const Tensor& logits, std::int64_t dim) {
  auto sizes = logits.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = 1;
  return sizes;
}

// Tensors with values for each sample, and numbers, reduced by one call. The tensors keep their shapes.
struct Reduced {
  std::vector<Tensor> tensors;
  std::vector<double> numbers;
};
Reduced all_reduced(const std::vector<Tensor>& tensors, const std::vector<double>& numbers, ReduceOp op,
                    const Ranks& ranks) {
  std::vector<Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  if (!numbers.empty()) flat.push_back(at::tensor(numbers, flat.front().options()));
  const auto all = at::cat(flat);
  ranks.group.all_reduce(all, op, ranks.where);
  Reduced result;
  std::int64_t begin = 0;
  for (const auto& tensor : tensors) {
    result.tensors.push_back(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  if (numbers.empty()) return result;
  const auto tail = all.slice(0, begin).to(at::kCPU, at::kDouble);
  result.numbers.assign(tail.const_data_ptr<double>(), tail.const_data_ptr<double>() + tail.numel());
  return result;
}

// The greatest logit of each sample, and the classes of each rank.
std::pair<Tensor, ClassRange> greatest(const Tensor& logits, std::int64_t dim, const Ranks& ranks) {
  const auto count = logits.size(dim);
  const auto own = count > 0 ? logits.amax(dim, true)
                             : at::full(sizes_of_one_class(logits, dim),
                                        -std::numeric_limits<double>::infinity(), logits.options());
  std::vector<double> counts(static_cast<std::size_t>(ranks.group.size()));
  counts[static_cast<std::size_t>(ranks.group.rank())] = static_cast<double>(count);
  const auto all = all_reduced({own}, counts, ReduceOp::MAX, ranks);
  const auto begin = all.numbers.begin();
  const auto first = std::accumulate(begin, begin + ranks.group.rank(), 0.0);
  const auto total = std::accumulate(begin, all.numbers.end(), 0.0);
  return {all.tensors[0], ClassRange{.first = static_cast<std::int64_t>(first),
                                     .count = count,
                                     .all = static_cast<std::int64_t>(total)}};
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
      "{}loss_parallel(): input of shape {} and target of shape {}; it needs [batch, classes, ...] of "
      "floating point and class indices [batch, ...] of int64",
      line_prefix(ranks.where), fmt::join(input.sizes(), "x"), fmt::join(target.sizes(), "x"));
}

// The same on all ranks, so that none waits for another's call.
void check_classes(const Loss& loss, const Tensor& given_weight, const Ranks& ranks) {
  const auto where = line_prefix(ranks.where) + "loss_parallel()";
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

void set_target(Loss& loss, const Tensor& target, const Options& options) {
  const auto unsqueezed = target.unsqueeze(loss.dim);
  const auto& classes = loss.classes;
  loss.is_valid = unsqueezed != options.ignore_index();
  loss.safe_target = at::where(loss.is_valid, unsqueezed, 0);
  loss.is_elsewhere =
      (loss.safe_target < classes.first).logical_or_(loss.safe_target >= classes.first + classes.count);
}

void set_weight(Loss& loss, const Tensor& weight, const Tensor& logits) {
  if (weight.defined()) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(logits.dim()), 1);
    shape[static_cast<std::size_t>(loss.dim)] = weight.numel();
    loss.weight = weight.detach().to(logits.scalar_type()).view(shape);
  }
  loss.total_weight = loss.weight.defined() ? at::where(loss.is_valid, loss.target_weight(), 0).sum()
                                            : loss.is_valid.sum().to(logits.scalar_type());
}

Tensor value_of(const Loss& loss, const Options& options, const Ranks& ranks) {
  const auto& logs = loss.log_probabilities;
  const auto at_target = loss.classes.count > 0
                             ? logs.gather(loss.dim, loss.own_target())
                             : at::zeros(sizes_of_one_class(logs, loss.dim), logs.options());
  std::vector<Tensor> parts{at_target.masked_fill(loss.is_elsewhere, 0)};
  const auto smoothing = options.label_smoothing();
  if (smoothing > 0)
    parts.push_back((loss.weight.defined() ? logs * loss.own_weight() : logs).sum(loss.dim, true));
  const auto sums = all_reduced(parts, {}, ReduceOp::SUM, ranks);
  auto nll = -sums.tensors[0];
  if (loss.weight.defined()) nll = nll * loss.target_weight();
  const auto plain = reduced(nll, loss, options);
  if (smoothing <= 0) return plain;
  const auto share = smoothing / static_cast<double>(loss.classes.all);
  return plain * (1 - smoothing) + reduced(-sums.tensors[1], loss, options) * share;
}

}  // namespace

Tensor loss_parallel(const Tensor& input, const Tensor& target, const DeviceMesh& mesh,
                     const Options& options, std::source_location where) {
  const CallerPlace place(where);
  const auto ranks = ranks_of(mesh, "loss_parallel()", where);
  check(input, target, ranks);
  Loss loss;
  loss.dim = input.dim() == 1 ? 0 : 1;
  Tensor result;
  {
    const c10::NoGradGuard no_gradients;
    const auto is_half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
    const auto logits = input.detach().to(is_half ? at::kFloat : input.scalar_type()).contiguous();
    Tensor max;
    std::tie(max, loss.classes) = greatest(logits, loss.dim, ranks);
    set_target(loss, target, options);
    check_classes(loss, options.weight(), ranks);
    set_weight(loss, options.weight(), logits);
    const auto shifted = logits - max;
    const auto sum = shifted.exp().sum(loss.dim, true);
    ranks.group.all_reduce(sum, ReduceOp::SUM, where);
    loss.log_probabilities = shifted - sum.log();
    result = value_of(loss, options, ranks).to(input.scalar_type());
  }
  return intercept::record("LossParallelBackward", {input}, {result},
                           [loss, options, dtype = input.scalar_type()](std::vector<Tensor> gradients) {
                             return std::vector{gradient_of(loss, gradients[0], options).to(dtype)};
                           })[0];
}

}  // namespace lockstep::tensor_parallel
