// SPDX-License-Identifier: BSD-3-Clause
#include "nn/synced_batch_norm.h"

#include <algorithm>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/announced_calls.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "device/libtorch_versions.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

// The statistics of a batch for each of its C channels: fp32, or fp64 for fp64 input.
struct BatchStatistics {
  at::Tensor mean;      // [C]
  at::Tensor variance;  // [C], biased
  double count = 0;     // values per channel
};

// For each channel c: result = of_gradient[c] * gradient + of_input[c] * (input - mean[c]) + constant[c].
struct ChannelFactors {
  at::Tensor of_gradient;  // [C] each, of fp32 or fp64
  at::Tensor of_input;
  at::Tensor mean;
  at::Tensor constant;
};

at::ScalarType statistics_type(at::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

// [mean, variance, count] in fp64: counts above 2^24 and sums over many ranks stay exact.
Tensor statistics_here(const Tensor& input) {
  const auto channels = input.size(1);
  const auto exact = input.options().dtype(at::kDouble).memory_format(at::MemoryFormat::Contiguous);
  auto row = at::zeros({2 * channels + 1}, exact);
  if (input.numel() == 0) return row;
  // The kernel computes in the type of the running statistics, whose new values are not needed here.
  const auto type =
      input.options().dtype(statistics_type(input.scalar_type())).memory_format(at::MemoryFormat::Contiguous);
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, at::zeros({channels}, type), at::ones({channels}, type), 0.0);
  row.narrow(0, 0, channels).copy_(mean);
  row.narrow(0, channels, channels).copy_(variance);
  row[2 * channels].fill_(static_cast<double>(input.numel() / channels));
  return row;
}

constexpr std::int64_t kGrain = 32 * 1024;  // elements for which a further thread pays off

template <typename Value, typename Factor>
struct Operands {
  const Value* gradient;
  const Value* input;
  Value* result;
  const Factor* of_gradient;
  const Factor* of_input;
  const Factor* mean;
  const Factor* constant;
};

// Contiguous: each (sample, channel) is one plane of `length` elements.
template <typename Value, typename Factor>
void by_planes(const Operands<Value, Factor>& all, std::int64_t planes, std::int64_t channels,
               std::int64_t length) {
  const auto grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, length));
  at::parallel_for(0, planes, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto plane = begin; plane < end; ++plane) {
      const auto channel = plane % channels;
      const Factor of_gradient = all.of_gradient[channel];
      const Factor of_input = all.of_input[channel];
      const Factor mean = all.mean[channel];
      const Factor constant = all.constant[channel];
      const Value* const gradient = all.gradient + plane * length;
      const Value* const input = all.input + plane * length;
      Value* const result = all.result + plane * length;
      for (std::int64_t i = 0; i < length; ++i) {
        result[i] = static_cast<Value>(of_gradient * static_cast<Factor>(gradient[i]) +
                                       of_input * (static_cast<Factor>(input[i]) - mean) + constant);
      }
    }
  });
}

// Channels last: each position has a row of all channels.
template <typename Value, typename Factor>
void by_rows(const Operands<Value, Factor>& all, std::int64_t rows, std::int64_t channels) {
  const auto grain = std::max<std::int64_t>(1, kGrain / channels);
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = begin; row < end; ++row) {
      const Value* const gradient = all.gradient + row * channels;
      const Value* const input = all.input + row * channels;
      Value* const result = all.result + row * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        result[c] = static_cast<Value>(all.of_gradient[c] * static_cast<Factor>(gradient[c]) +
                                       all.of_input[c] * (static_cast<Factor>(input[c]) - all.mean[c]) +
                                       all.constant[c]);
      }
    }
  });
}

Tensor on_cpu(const Tensor& gradient, const Tensor& input, const ChannelFactors& factors) {
  auto result = at::empty_like(input);
  const auto channels = input.size(1);
  const auto values = input.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, input.scalar_type(), "normalize_gradient", [&] {
    using Factor = at::opmath_type<scalar_t>;
    const Operands<scalar_t, Factor> all{.gradient = gradient.const_data_ptr<scalar_t>(),
                                         .input = input.const_data_ptr<scalar_t>(),
                                         .result = result.mutable_data_ptr<scalar_t>(),
                                         .of_gradient = factors.of_gradient.const_data_ptr<Factor>(),
                                         .of_input = factors.of_input.const_data_ptr<Factor>(),
                                         .mean = factors.mean.const_data_ptr<Factor>(),
                                         .constant = factors.constant.const_data_ptr<Factor>()};
    const bool in_planes = input.is_contiguous() && input.dim() > 2;
    if (in_planes) {
      const auto planes = input.size(0) * channels;
      by_planes(all, planes, channels, values / planes);
    } else {
      by_rows(all, values / channels, channels);
    }
  });
  return result;
}

Tensor by_arithmetic(const Tensor& gradient, const Tensor& input, const ChannelFactors& factors) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  const auto spread = [&](const Tensor& factor) { return factor.view(shape); };
  const auto type = factors.mean.scalar_type();
  auto result = (input.to(type) - spread(factors.mean)).mul_(spread(factors.of_input));
  result.addcmul_(gradient.to(type), spread(factors.of_gradient)).add_(spread(factors.constant));
  return result.to(input.scalar_type());
}

// The statistics of all ranks' batches together; the same bits on each rank.
BatchStatistics joined_statistics(const Tensor& input, const ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto type = statistics_type(input.scalar_type());
  const auto here = statistics_here(input);
  const auto rows = at::empty({group.size(), here.numel()}, here.options());
  comm::announce(group, {.kind = comm::Announcement::Kind::all_gather, .count = here.numel()});
  const comm::CallSite site("statistics of SyncBatchNorm");
  group.all_gather_into_tensor(rows, here);
  const auto means = rows.narrow(1, 0, channels);
  const auto variances = rows.narrow(1, channels, channels);
  const auto counts = rows.narrow(1, 2 * channels, 1);
  const auto count = counts.sum().item<double>();
  if (count == 0) return {.mean = means[0].to(type), .variance = variances[0].to(type), .count = 0};
  const auto mean = (means * counts).sum(0) / count;
  const auto variance = ((variances + (means - mean).square()) * counts).sum(0) / count;
  return {.mean = mean.to(type), .variance = variance.to(type), .count = count};
}

// Moves running statistics (in place, of any floating type) towards those of a batch.
void update_running(const Tensor& running_mean, const Tensor& running_var, const BatchStatistics& batch,
                    double momentum) {
  const auto unbiased = batch.count / (batch.count - 1);
  const auto move = [&](const Tensor& running, const Tensor& now, double factor) {
    if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum * factor);
  };
  move(running_mean, batch.mean, 1);
  move(running_var, batch.variance, unbiased);
}

// `gradient` and `input` have one shape [N, C, ...], dtype and layout (contiguous or channels last), and so
// has the result.
Tensor normalize_gradient(const Tensor& gradient, const Tensor& input, const ChannelFactors& factors) {
  return input.is_cpu() ? on_cpu(gradient, input, factors) : by_arithmetic(gradient, input, factors);
}

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
                          const ProcessGroup& group)
      : input_(input, false),
        weight_(weight, false),
        statistics_(std::move(statistics)),
        eps_(eps),
        group_(group) {}

  std::string name() const override { return "SyncedBatchNormBackward"; }

  void release_variables() override {
    input_.reset_data();
    weight_.reset_data();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const CallerPlace place(where_);
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
      const comm::CallSite site("gradient sums of SyncBatchNorm");
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
  std::source_location where_ = CallerPlace::current();  // backward runs in a thread of LibTorch
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
