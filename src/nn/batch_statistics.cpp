// SPDX-License-Identifier: BSD-3-Clause
#include "nn/batch_statistics.h"

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace lockstep::nn {
namespace {

using at::Tensor;

// [mean, variance, count] in fp64: counts above 2^24 and sums over many ranks stay exact.
Tensor statistics_here(const Tensor& input) {
  const auto channels = input.size(1);
  const auto exact = input.options().dtype(at::kDouble).memory_format(at::MemoryFormat::Contiguous);
  auto row = at::zeros({2 * channels + 1}, exact);
  if (input.numel() == 0) return row;
  // LibTorch's kernel that counts and nothing else. Running statistics of fp32 make it count so; their new
  // values are of no use here.
  const auto type =
      input.options().dtype(statistics_type(input.scalar_type())).memory_format(at::MemoryFormat::Contiguous);
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, at::zeros({channels}, type), at::ones({channels}, type), 0.0);
  row.narrow(0, 0, channels).copy_(mean);
  row.narrow(0, channels, channels).copy_(variance);
  row[2 * channels].fill_(static_cast<double>(input.numel() / channels));
  return row;
}

}  // namespace

at::ScalarType statistics_type(at::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

BatchStatistics joined_statistics(const Tensor& input, const ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto type = statistics_type(input.scalar_type());
  const auto here = statistics_here(input);
  const auto rows = at::empty({group.size(), here.numel()}, here.options());
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

}  // namespace lockstep::nn
