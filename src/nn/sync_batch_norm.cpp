// SPDX-License-Identifier: BSD-3-Clause
#include <ostream>

#include <ATen/ops/batch_norm.h>

#include <lockstep/nn/sync_batch_norm.h>

#include "base/throw_error.h"
#include "nn/synced_batch_norm.h"
#include "runtime/run.h"

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
    const auto group = runtime::group_or_default(group_);
    if (group && group->size() > 1) {
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
