// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/own_state.h"

#include <algorithm>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/checkpoint/training_state.h>

#include "base/throw_error.h"
#include "checkpoint/training_state_access.h"
#include "intercept/storage_guard.h"
#include "modules/rank_part.h"
#include "optim/optimizer_states.h"

namespace lockstep::checkpointing {
namespace {

[[noreturn]] void refuse(const std::string& name, const char* why) {
  throw_error<ArgumentError>(
      "'{}' cannot be part of an elastic run yet: {}; run it with --on-loss restart and checkpoints", name,
      why);
}

// parallelize_module() and fully_shard() see by guards where a parameter of a module is used.
bool is_guarded(const at::Tensor& parameter) {
  return parameter.has_storage() && intercept::has_guard(parameter);
}

void drop_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) parameter.mutable_grad().reset();
}

bool is_among(const KeptParts& parts, const std::string& name, bool is_position) {
  return (parts.positions && is_position) || parts.names.contains(name);
}

}  // namespace

Value own_state(const std::string& name, const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  if (std::ranges::any_of(parameters, [](const auto& each) {
        return is_guarded(each) && modules::rank_part_of(each) == nullptr;
      })) {
    refuse(name, "its parameters are distributed over the ranks by parallelize_module()");
  }
  if (!modules::has_rank_parts(module)) return lockstep::state_dict(module);
  Dict dict;
  for (const auto& each : modules::own_tensors(module)) dict.set(each.name, each.tensor.detach());
  return dict;
}

void restore_own_state(torch::nn::Module& module, const Dict& saved) {
  if (!modules::has_rank_parts(module)) {
    lockstep::load_state_dict(module, saved);
    return;
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : modules::own_tensors(module)) {
    const auto* const value = saved.find(name);
    if (value == nullptr) throw_error<CheckpointError>("it has no tensor '{}'", name);
    const auto& saved_tensor = value->as_tensor();
    if (saved_tensor.sizes() != tensor.sizes() || saved_tensor.scalar_type() != tensor.scalar_type()) {
      throw_error<CheckpointError>(
          "its tensor '{}' is {} of shape [{}], but this rank's is {} of shape [{}]; the program before "
          "elastic::run() has to make the same module at each start",
          name, c10::toString(saved_tensor.scalar_type()), fmt::join(saved_tensor.sizes(), ", "),
          c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
    }
    tensor.copy_(saved_tensor);
  }
}

void require_can_shrink(const torch::nn::Module& module) {
  if (modules::has_rank_parts(module))
    throw ArgumentError("fully_shard() distributes its parameters, and only the lost rank has its shards");
}

void require_can_shrink(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::DistributedStates*>(&optimizer) != nullptr)
    throw ArgumentError(
        "a ZeroRedundancyOptimizer distributes its states, and only the lost rank has its own");
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (optim::rows_of(parameter) != nullptr)
        throw ArgumentError("its parameters are shards of fully_shard(), and only the lost rank has its own");
}

void require_own_gradients(const std::string& name, const torch::nn::Module& module) {
  if (modules::has_rank_parts(module))
    refuse(name, "fully_shard() distributes the gradients; commit after steps of the optimizer only");
}

Value own_state(const std::string& name, const torch::optim::Optimizer& optimizer) {
  const auto* const distributed = dynamic_cast<const optim::DistributedStates*>(&optimizer);
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (is_guarded(parameter)) {
        refuse(
            name,
            "its parameters are those of a module of parallelize_module() or fully_shard(); for the latter, "
            "give it parameters() of the FSDPModule");
      }
      if (distributed != nullptr && distributed->sharing_of(parameter))
        refuse(name, "its parameters lie in memory that the ranks share (share_parameters())");
    }
  }
  return optim::states_of_rank(optimizer);
}

Dict TrainingStateAccess::own_state_dict(const TrainingState& state, const KeptParts& without) {
  Dict dict;
  for (const auto& entry : state.entries_)
    if (!is_among(without, entry.name, entry.is_position)) dict.set(entry.name, entry.own.save());
  return dict;
}

void TrainingStateAccess::load_own_state_dict(const TrainingState& state, const Dict& saved,
                                              const KeptParts& without) {
  // Those of a step that has failed; parts may restore others.
  for (auto* const module : modules(state)) drop_gradients(module->parameters());
  for (auto* const optimizer : state.optimizers_)
    for (const auto& group : optimizer->param_groups()) drop_gradients(group.params());
  for (const auto& entry : state.entries_) {
    if (is_among(without, entry.name, entry.is_position)) continue;
    try {
      entry.own.load(saved.at(entry.name));
    } catch (const CheckpointError& error) {
      throw_error<CheckpointError>("'{}' of the commit does not fit: {}", entry.name, error.what());
    }
  }
}

void TrainingStateAccess::require_can_shrink(const TrainingState& state) {
  for (const auto& entry : state.entries_) {
    if (!entry.require_can_shrink) continue;
    try {
      entry.require_can_shrink();
    } catch (const ArgumentError& error) {
      throw_error<ArgumentError>("elastic::run: --on-loss shrink does not support '{}': {}", entry.name,
                                 error.what());
    }
  }
}

void TrainingStateAccess::require_no_gradients(const TrainingState& state) {
  const auto gradients =
      std::ranges::find_if(state.entries_, [](const auto& each) { return each.is_gradients; });
  if (gradients == state.entries_.end()) return;
  const auto has_gradient = [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const auto& each) { return each.grad().defined(); });
  };
  for (const auto* const optimizer : state.optimizers_) {
    if (std::ranges::none_of(optimizer->param_groups(), has_gradient)) continue;
    throw_error<ArgumentError>(
        "commit: '{}' would have gradients, and with --on-loss shrink those of a lost rank would be missing; commit "
        "after a step of the optimizer and zero_grad() only",
        gradients->name);
  }
}

std::vector<torch::nn::Module*> TrainingStateAccess::modules(const TrainingState& state) {
  std::vector<torch::nn::Module*> all;
  for (const auto& module : state.modules_) all.push_back(&module());
  return all;
}

const std::vector<torch::optim::Optimizer*>& TrainingStateAccess::optimizers(const TrainingState& state) {
  return state.optimizers_;
}

// Parts that can say whether they shrink are modules, optimizers and loaders, in the order in which they were added. Of these
// only the state of an optimizer has a list of groups.
std::map<std::string, const torch::optim::Optimizer*> TrainingStateAccess::optimizers_by_part(
    const TrainingState& state, const Dict& own_states) {
  std::map<std::string, const torch::optim::Optimizer*> all;
  auto next = state.optimizers_.begin();
  for (const auto& entry : state.entries_) {
    if (!entry.require_can_shrink || entry.is_position) continue;
    const auto* const groups = own_states.at(entry.name).as_dict().find("param_groups");
    if (groups != nullptr && groups->is<List>()) all[entry.name] = *next++;
  }
  return all;
}

const std::optional<ProcessGroup>& TrainingStateAccess::group(const TrainingState& state) {
  return state.group_;
}

void TrainingStateAccess::set_committer(TrainingState& state, Committer* committer) {
  state.committer_ = committer;
}

}  // namespace lockstep::checkpointing
