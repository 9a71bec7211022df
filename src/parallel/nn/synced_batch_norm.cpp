// SPDX-License-Identifier: BSD-3-Clause
#include "nn/synced_batch_norm.h"

#include <algorithm>
#include <ostream>

#include <ATen/ops/batch_norm.h>
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

#include <lockstep/nn/sync_batch_norm.h>

#include "base/throw_error.h"
#include "comm/announced_calls.h"
#include "comm/group_state.h"
#include "device/libtorch_versions.h"
#include "runtime/run.h"

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
      comm::announce(group_, {.kind = comm::Announcement::Kind::all_reduce, .count = sums.numel()});
      group_.all_reduce(sums.view(-1));
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
  libtorch::NodePointer<SyncedBatchNormBackward> node;
  {
    const c10::AutoGradMode no_history(false);
    const auto input = laid_out(given, given.suggest_memory_format());
    auto statistics = joined_statistics(input, group);
    check_count(statistics.count, input);
    if (statistics.count > 0) update_running(layer.running_mean, layer.running_var, statistics, momentum);
    output = input.numel() == 0 ? at::zeros_like(input) : normalized(input, layer, statistics, eps);
    if (records) {
      node = libtorch::make_node<SyncedBatchNormBackward>(input.is_same(given) ? given : input, layer.weight,
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

namespace lockstep {

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& layer,
                                     std::optional<ProcessGroup> process_group)
    : Base(layer), group_(std::move(process_group)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() < 2) {
    throw_error<ArgumentError>("SyncBatchNorm: input has {} dimensions; it must be [N, C, ...]", input.dim());
  }
  if (input.size(1) != options.num_features()) {
    throw_error<ArgumentError>("SyncBatchNorm: input has {} channels, but num_features is {}", input.size(1),
                               options.num_features());
  }
  if (input.size(1) == 0) throw ArgumentError("SyncBatchNorm: input has no channels");
}

// Counts the batch. Without a momentum the running statistics are averages over all batches.
double SyncBatchNormImpl::next_momentum() {
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum()) return 1.0 / num_batches_tracked.item<double>();
  }
  return options.momentum().value_or(0.0);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const double momentum = next_momentum();
  if (is_training()) {
    const auto group = runtime::group_or_default(group_, "SyncBatchNorm");
    if (group && group->size() > 1) {
      comm::refuse_with_python(comm::state_of(*group), "SyncBatchNorm", "use BatchNorm");
      return nn::synced_batch_norm(
          input, {.weight = weight, .bias = bias, .running_mean = running_mean, .running_var = running_var},
          momentum, options.eps(), *group);
    }
    nn::check_count(static_cast<double>(input.numel() / input.size(1)), input);
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        is_training() || !running_mean.defined(), momentum, options.eps(),
                        at::globalContext().userEnabledCuDNN());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  const auto momentum = options.momentum();
  stream << fmt::format("lockstep::SyncBatchNorm({}, eps={}, momentum={}, affine={}, track_running_stats={})",
                        options.num_features(), options.eps(),
                        momentum ? fmt::format("{}", *momentum) : "None", options.affine(),
                        options.track_running_stats());
}

}  // namespace lockstep
