// SPDX-License-Identifier: BSD-3-Clause
#include "training/trainer_checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <unordered_set>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "metrics/sum_over_ranks.h"
#include "runtime/run.h"

namespace lockstep::training {
namespace {

void check_at_least(std::int64_t least, std::int64_t value, const char* name) {
  if (value < least) throw_error<ArgumentError>("Trainer: {} = {}; give at least {}", name, value, least);
}

void check_bad_loss(const TrainerOptions& options) {
  const auto factor = options.spike_factor;
  if (factor != 0 && !(factor > 1 && std::isfinite(factor)))
    throw_error<ArgumentError>("Trainer: spike_factor = {}; give more than 1, or 0 for no limit", factor);
  check_at_least(1, options.spike_window, "spike_window");
  check_at_least(1, options.max_bad_steps, "max_bad_steps");
  check_at_least(1, options.rewind_steps, "rewind_steps");
  const bool guards = options.on_bad_loss != OnBadLoss::error || factor != 0;
  if (guards && options.autocast == at::kHalf) {
    throw_error<ArgumentError>(
        "Trainer: {} does not work with autocast in float16, where the GradScaler skips steps that are not finite; "
        "leave it out, or use bfloat16",
        factor != 0 ? "spike_factor" : fmt::format("on_bad_loss = \"{}\"", options.on_bad_loss.text()));
  }
}

}  // namespace

TrainerOptions checked(const TrainerOptions& options) {
  check_at_least(0, options.epochs.value_or(0), "epochs");
  check_at_least(0, options.max_steps.value_or(0), "max_steps");
  check_at_least(1, options.accumulation_steps, "accumulation_steps");
  check_at_least(0, options.checkpoint_interval, "checkpoint_interval");
  check_at_least(1, options.epochs_per_checkpoint, "epochs_per_checkpoint");
  check_at_least(1, options.log_interval, "log_interval");
  check_at_least(1, options.agree_interval, "agree_interval");
  check_at_least(0, options.verify_interval, "verify_interval");
  if (options.max_grad_norm && !(*options.max_grad_norm > 0))
    throw_error<ArgumentError>("Trainer: max_grad_norm = {}; give more than 0", *options.max_grad_norm);
  check_bad_loss(options);
  if (options.resume && options.checkpoints.empty())
    throw ArgumentError("Trainer: resume needs a folder of checkpoints");
  return options;
}

CheckpointManagerOptions manager_options(const TrainerOptions& options,
                                         const std::optional<ProcessGroup>& group, bool is_sharded) {
  return {.keep_last = options.keep_last,
          .keep_best = options.keep_best,
          .higher_is_better = options.higher_is_better,
          .async_save = options.async_save,
          .process_group = group,
          .writing = is_sharded ? CheckpointWriting::every_rank : CheckpointWriting::first_rank};
}

StepVerifierOptions verifier_options(const TrainerOptions& options, torch::optim::Optimizer& optimizer) {
  return {.interval = options.verify_interval,
          .all_ranks = options.verify_all_ranks,
          .on_mismatch = options.elastic ? OnMismatch::replace : OnMismatch::stop,
          .accumulation_steps = options.accumulation_steps,
          .optimizer = &optimizer};
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

std::vector<modules::NamedTensor> optimizable_parameters(const torch::nn::Module& module,
                                                         const std::optional<FSDPModule>& sharded) {
  if (!sharded) return modules::distinct(module.named_parameters());
  std::vector<modules::NamedTensor> all;
  for (const auto& [name, parameter] : sharded->named_parameters()) all.push_back({name, parameter});
  return all;
}

std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> weak(
    const std::vector<modules::NamedTensor>& parameters) {
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> all;
  for (const auto& each : parameters) all.emplace_back(each.tensor.getIntrusivePtr());
  return all;
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

namespace {

// Where the ranks' numbers differ; as many on each rank.
at::Tensor differences(const std::vector<std::int64_t>& own, const ProcessGroup& group) {
  const auto bits = at::tensor(own, at::kLong).to(comm::device_for_objects(group));
  // The complement's maximum is the minimum's complement.
  auto most = at::cat({bits, bits.bitwise_not()});
  group.all_reduce(most, ReduceOp::MAX);
  const auto count = bits.size(0);
  return most.slice(0, 0, count).ne(most.slice(0, count).bitwise_not()).cpu();
}

void check_equal_names(const Scalars& numbers, const ProcessGroup& group) {
  std::string names;
  for (const auto& [name, value] : numbers) names += (names.empty() ? "" : ", ") + name;
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(names));
  if (!differences({hash}, group).item<bool>()) return;
  std::vector<std::string> all;
  for (const auto& its : group.all_gather_object(names))
    all.push_back(fmt::format("rank {}: {}", all.size(), its.empty() ? "none" : its));
  throw_error<DesyncError>(comm::reporter_of(group), comm::about(group),
                           "Trainer: the ranks' validations return different numbers; {}",
                           fmt::join(all, "; "));
}

}  // namespace

void check_equal_numbers(const Scalars& numbers, const std::optional<ProcessGroup>& group) {
  if (!group) return;
  check_equal_names(numbers, *group);
  if (numbers.empty()) return;
  std::vector<std::int64_t> own;
  for (const auto& [name, value] : numbers) own.push_back(std::bit_cast<std::int64_t>(value + 0.0));
  const auto differs = differences(own, *group);
  for (std::int64_t i = 0; i < differs.size(0); ++i) {
    if (!differs[i].item<bool>()) continue;
    const auto& [name, value] = *std::next(numbers.begin(), i);
    throw_error<DesyncError>(
        comm::reporter_of(*group), comm::about(*group),
        "Trainer: the ranks' validations differ in {}, here {}; reduce it over the ranks, "
        "e.g. by a metric of lockstep::metrics or reduce_value()",
        name, value);
  }
}

namespace {

bool is_finite(const at::Tensor& tensor) {
  const auto values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
  return values.isfinite().all().item<bool>();
}

// The first parameter for whose rows on this rank `tensor_of` is not finite; empty: none.
template <typename TensorOf>
std::string first_bad(const torch::nn::Module& module, TensorOf tensor_of) {
  std::string first;
  const auto visit = [&](const std::string& name, const at::Tensor& parameter) {
    const at::Tensor tensor = tensor_of(parameter);
    if (first.empty() && tensor.defined() && !is_finite(tensor)) first = name;
  };
  if (const auto sharded = FSDPModule::find(module)) {
    for (const auto& [name, rows] : sharded->named_parameters()) visit(name, rows);
  } else {
    for (const auto& parameter : module.named_parameters()) visit(parameter.key(), parameter.value());
  }
  return first;
}

std::string first_bad_gradient(const torch::nn::Module& module) {
  const auto first = first_bad(module, [](const at::Tensor& parameter) { return parameter.grad(); });
  return first.empty() ? "all gradients are finite"
                       : "the first parameter whose gradient is not finite is " + first;
}

std::vector<std::string> of_all_ranks(const std::string& own, const std::optional<ProcessGroup>& group) {
  return group ? group->all_gather_object(own) : std::vector{own};
}

}  // namespace

std::string non_finite_text(double loss, const torch::nn::Module& module, std::int64_t step,
                            const std::optional<ProcessGroup>& group) {
  const auto own =
      fmt::format("rank {}: loss {}, {}", group ? group->rank() : 0, loss, first_bad_gradient(module));
  return fmt::format("step {}: a loss or a gradient is not finite; {}", step,
                     fmt::join(of_all_ranks(own, group), "; "));
}

void throw_non_finite(double loss, const torch::nn::Module& module, std::int64_t step,
                      const std::optional<ProcessGroup>& group) {
  throw NonFiniteError(non_finite_text(loss, module, step, group));
}

void check_parameters_finite(const torch::nn::Module& module, std::int64_t step,
                             const std::optional<ProcessGroup>& group) {
  const auto first = first_bad(module, [](const at::Tensor& parameter) { return parameter.detach(); });
  if (metrics::sum_over_ranks({first.empty() ? 0.0 : 1.0}, group).front() == 0) return;
  const auto own = fmt::format("rank {}: {}", group ? group->rank() : 0, first.empty() ? "none" : first);
  throw_error<NonFiniteError>(
      "step {}: parameters are not finite, so no checkpoint is saved; the first of {}", step,
      fmt::join(of_all_ranks(own, group), "; "));
}

}  // namespace lockstep::training

namespace lockstep {

void finite_or_stop(const at::Tensor& loss, ConstModuleRef module, std::int64_t step,
                    const std::optional<ProcessGroup>& process_group, std::source_location where) {
  const comm::CallSite site(where);
  const auto group = runtime::group_or_default(process_group, "finite_or_stop()");
  const auto number = loss.item<double>();
  const double is_bad = std::isfinite(number) ? 0 : 1;
  if (metrics::sum_over_ranks({is_bad}, group).front() > 0)
    training::throw_non_finite(number, module, step, group);
}

void Trainer::refuse_batch() {
  throw ArgumentError(
      "Trainer: verify_interval needs batches that can be copied and whose tensors TensorVisitor finds; give the type "
      "of the batches a visit_tensors()");
}

}  // namespace lockstep
