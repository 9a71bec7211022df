// SPDX-License-Identifier: BSD-3-Clause
#include "nn/synced_batch_norm.h"

#include <algorithm>

#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "base/throw_error.h"
#include "nn/batch_norm_kernels.h"
#include "nn/node_pointer.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

// Copies a tensor that is neither contiguous nor channels last.
Tensor laid_out(const Tensor& tensor, at::MemoryFormat format) {
  return tensor.dim() < 4 || tensor.dim() > 5 ? tensor.contiguous() : tensor.contiguous(format);
}

Tensor in_type(const Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

Tensor normalized(const Tensor& input, const BatchNormTensors& layer, const BatchStatistics& statistics,
                  double eps) {
  const auto type = statistics.mean.scalar_type();
  return std::get<0>(at::native_batch_norm(input, in_type(layer.weight, type), in_type(layer.bias, type),
                                           statistics.mean, statistics.variance, false, 0.0, eps));
}

class SyncedBatchNormBackward : public torch::autograd::Node {
 public:
  SyncedBatchNormBackward(const Tensor& input, const Tensor& weight, BatchStatistics statistics, double eps,
                          ProcessGroup group)
      : input_(input, false),
        weight_(weight, false),
        statistics_(std::move(statistics)),
        eps_(eps),
        group_(std::move(group)) {}

  std::string name() const override { return "SyncedBatchNormBackward"; }

  void release_variables() override {
    input_.reset_data();
    weight_.reset_data();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw Error(
          "SyncBatchNorm: backward with create_graph is not supported: the other ranks' part of second "
          "derivatives would be lost");
    }
    const auto input = input_.unpack();
    const auto weight = weight_.unpack();
    auto gradient = gradients[0];
    if (!gradient.defined()) gradient = at::zeros_like(input);
    gradient = laid_out(gradient, input.suggest_memory_format());
    const auto sums = sums_here(gradient, input);
    // This rank's own gradients; DistributedDataParallel averages them.
    torch::autograd::variable_list result(3);
    if (task_should_compute_output(1) && weight.defined())
      result[1] = sums[1].to(weight.scalar_type(), false, /*copy=*/true);
    if (task_should_compute_output(2) && weight.defined())
      result[2] = sums[0].to(weight.scalar_type(), false, /*copy=*/true);
    if (task_should_compute_output(0)) {
      group_.all_reduce(sums);
      result[0] = input_gradient(gradient, input, weight, sums);
    }
    return result;
  }

 private:
  // [2, C], in fp64 for the sum across ranks: the sums of the gradients and of their products with the
  // normalized input.
  Tensor sums_here(const Tensor& gradient, const Tensor& input) const {
    const auto& mean = statistics_.mean;
    const auto sums = at::zeros({2, input.size(1)}, mean.options().dtype(at::kDouble));
    if (input.numel() == 0) return sums;
    // The kernel of eval(), in which mean and variance do not depend on the input.
    const auto found = at::native_batch_norm_backward(gradient, input, {}, mean, statistics_.variance, mean,
                                                      statistics_.variance, false, eps_, {false, true, true});
    sums[0].copy_(std::get<2>(found));
    sums[1].copy_(std::get<1>(found));
    return sums;
  }

  Tensor input_gradient(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                        const Tensor& sums) const {
    if (input.numel() == 0) return at::zeros_like(input);
    const auto type = statistics_.mean.scalar_type();
    const auto means = sums / statistics_.count;
    const auto inverse_deviation = (statistics_.variance.to(at::kDouble) + eps_).rsqrt();
    const auto scale = weight.defined() ? weight.to(at::kDouble) * inverse_deviation : inverse_deviation;
    return normalize_gradient(gradient, input,
                              {.of_gradient = scale.to(type),
                               .of_input = (scale * inverse_deviation * means[1]).neg_().to(type),
                               .mean = statistics_.mean,
                               .constant = (scale * means[0]).neg_().to(type)});
  }

  torch::autograd::SavedVariable input_;
  torch::autograd::SavedVariable weight_;
  BatchStatistics statistics_;
  double eps_;
  ProcessGroup group_;
};

}  // namespace

void check_count(double count, const Tensor& input) {
  if (count != 1) return;
  throw_error<ArgumentError>(
      "SyncBatchNorm: all ranks together have one value per channel (input of [{}] here); training needs "
      "more",
      fmt::join(input.sizes(), ", "));
}

Tensor synced_batch_norm(const Tensor& given, const BatchNormTensors& layer, double momentum, double eps,
                         const ProcessGroup& group) {
  using torch::autograd::collect_next_edges;
  const bool records =
      c10::GradMode::is_enabled() && torch::autograd::compute_requires_grad(given, layer.weight, layer.bias);
  Tensor output;
  NodePointer<SyncedBatchNormBackward> node;
  {
    const c10::AutoGradMode no_history(false);
    const auto input = laid_out(given, given.suggest_memory_format());
    auto statistics = joined_statistics(input, group);
    check_count(statistics.count, input);
    if (statistics.count > 0) update_running(layer.running_mean, layer.running_var, statistics, momentum);
    output = input.numel() == 0 ? at::zeros_like(input) : normalized(input, layer, statistics, eps);
    if (records) {
      node = make_node<SyncedBatchNormBackward>(input.is_same(given) ? given : input, layer.weight,
                                                std::move(statistics), eps, group);
    }
  }
  if (records) {
    node->set_next_edges(collect_next_edges(given, layer.weight, layer.bias));
    torch::autograd::set_history(output, node);
  }
  return output;
}

}  // namespace lockstep::nn
