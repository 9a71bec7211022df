// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "comm/announced_calls.h"
#include "nn/synced_batch_norm.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

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

}  // namespace

BatchStatistics joined_statistics(const Tensor& input, const ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto type = statistics_type(input.scalar_type());
  const auto here = statistics_here(input);
  const auto rows = at::empty({group.size(), here.numel()}, here.options());
  comm::announce(group, {.kind = comm::Announcement::Kind::all_gather, .count = here.numel()});
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

void update_running(const Tensor& running_mean, const Tensor& running_var, const BatchStatistics& batch,
                    double momentum) {
  const auto unbiased = batch.count / (batch.count - 1);
  const auto move = [&](const Tensor& running, const Tensor& now, double factor) {
    if (running.defined()) running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum * factor);
  };
  move(running_mean, batch.mean, 1);
  move(running_var, batch.variance, unbiased);
}

Tensor normalize_gradient(const Tensor& gradient, const Tensor& input, const ChannelFactors& factors) {
  return input.is_cpu() ? on_cpu(gradient, input, factors) : by_arithmetic(gradient, input, factors);
}

}  // namespace lockstep::nn
