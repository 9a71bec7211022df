// SPDX-License-Identifier: BSD-3-Clause
#include "nn/normalize_gradient.h"

#include <algorithm>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

namespace lockstep::nn {
namespace {

using at::Tensor;

constexpr std::int64_t kGrain = 32 * 1024;  // elements that are worth a thread

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

// Contiguous: every (sample, channel) has a stretch of its own.
template <typename Value, typename Factor>
void by_stretches(const Operands<Value, Factor>& all, std::int64_t stretches, std::int64_t channels,
                  std::int64_t length) {
  const auto grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, length));
  at::parallel_for(0, stretches, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto stretch = begin; stretch < end; ++stretch) {
      const auto channel = stretch % channels;
      const Factor of_gradient = all.of_gradient[channel];
      const Factor of_input = all.of_input[channel];
      const Factor mean = all.mean[channel];
      const Factor constant = all.constant[channel];
      const Value* const gradient = all.gradient + stretch * length;
      const Value* const input = all.input + stretch * length;
      Value* const result = all.result + stretch * length;
      for (std::int64_t i = 0; i < length; ++i) {
        result[i] = static_cast<Value>(of_gradient * static_cast<Factor>(gradient[i]) +
                                       of_input * (static_cast<Factor>(input[i]) - mean) + constant);
      }
    }
  });
}

// Channels last: every place has a row of all channels.
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
    const bool in_stretches = input.is_contiguous() && input.dim() > 2;
    if (in_stretches) {
      const auto stretches = input.size(0) * channels;
      by_stretches(all, stretches, channels, values / stretches);
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

Tensor normalize_gradient(const Tensor& gradient, const Tensor& input, const ChannelFactors& factors) {
  return input.is_cpu() ? on_cpu(gradient, input, factors) : by_arithmetic(gradient, input, factors);
}

}  // namespace lockstep::nn
