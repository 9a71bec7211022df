// SPDX-License-Identifier: BSD-3-Clause
#include "training/trainer_checks.h"

#include <algorithm>
#include <unordered_set>

#include "base/throw_error.h"
#include "metrics/sum_over_ranks.h"
#include "runtime/run.h"

namespace lockstep::training {
namespace {

void check_at_least(std::int64_t least, std::int64_t value, const char* name) {
  if (value < least) throw_error<ArgumentError>("Trainer: {} = {}; give at least {}", name, value, least);
}

}  // namespace

TrainerOptions checked(TrainerOptions options) {
  check_at_least(0, options.epochs.value_or(0), "epochs");
  check_at_least(0, options.max_steps.value_or(0), "max_steps");
  check_at_least(1, options.accumulation_steps, "accumulation_steps");
  check_at_least(0, options.checkpoint_interval, "checkpoint_interval");
  check_at_least(1, options.epochs_per_checkpoint, "epochs_per_checkpoint");
  check_at_least(1, options.log_interval, "log_interval");
  check_at_least(1, options.agree_interval, "agree_interval");
  if (options.max_grad_norm && !(*options.max_grad_norm > 0))
    throw_error<ArgumentError>("Trainer: max_grad_norm = {}; give more than 0", *options.max_grad_norm);
  if (options.resume && options.checkpoints.empty())
    throw ArgumentError("Trainer: resume needs a folder of checkpoints");
  return options;
}

std::optional<ProcessGroup> trainer_group(const DistributedDataParallelModule* ddp, bool is_sharded) {
  const auto group = ddp == nullptr ? runtime::group_or_default({}, "Trainer") : ddp->process_group();
  if (ddp == nullptr && !is_sharded && group && group->size() > 1)
    throw_error<ArgumentError>(
        "Trainer: the module is not a DistributedDataParallel, nor of fully_shard(), so the {} ranks would "
        "train {} different models",
        group->size(), group->size());
  return group;
}

void check_optimizer(const std::vector<modules::NamedTensor>& parameters,
                     const std::vector<c10::weak_intrusive_ptr<at::TensorImpl>>& first_parameters,
                     const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> known, first;
  for (const auto& each : parameters) known.insert(each.tensor.unsafeGetTensorImpl());
  for (const auto& each : first_parameters) first.insert(each._unsafe_get_target());
  std::unordered_set<const void*> optimized;
  std::vector<at::Tensor> old;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& each : group.params()) {
      const auto* const address = each.unsafeGetTensorImpl();
      optimized.insert(address);
      const bool was_parameter = first.contains(address) || each.use_count() == 1;
      if (!known.contains(address) && was_parameter) old.push_back(each);
    }
  }
  if (old.empty()) return;
  if (old.size() == optimized.size()) {
    throw ArgumentError(
        "Trainer: the optimizer has none of the module's parameters, so its steps would change nothing; "
        "construct it from the parameters() of the module as it is now");
  }
  for (const auto& [name, tensor] : parameters) {
    const auto is_alike = [&](const auto& other) {
      return first.contains(other.unsafeGetTensorImpl()) || other.sizes() == tensor.sizes();
    };
    if (!tensor.requires_grad() || optimized.contains(tensor.unsafeGetTensorImpl())) continue;
    if (std::ranges::none_of(old, is_alike)) continue;
    throw_error<ArgumentError>(
        "Trainer: the optimizer does not have the module's parameter {}, but a tensor that is no longer a "
        "parameter of the module; construct the optimizer from the parameters() of the module as it is now",
        name);
  }
}

void check_no_checkpoints(const CheckpointManager& manager, const std::optional<ProcessGroup>& group) {
  const auto saved = manager.checkpoints();
  const bool counts = !saved.empty() && (!group || group->rank() == 0);
  const auto last = metrics::sum_over_ranks({counts ? static_cast<double>(saved.back().step) + 1 : 0}, group);
  if (last[0] > 0)
    throw_error<ArgumentError>(
        "Trainer: {} has checkpoints up to step {}; set resume to continue, or use another folder",
        manager.folder().string(), last[0] - 1);
}

}  // namespace lockstep::training
