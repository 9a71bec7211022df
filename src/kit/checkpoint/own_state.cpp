// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/own_state.h"

#include <algorithm>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/checkpoint/training_state.h>

#include "base/throw_error.h"
#include "checkpoint/training_state_access.h"
#include "intercept/storage_guard.h"
#include "optim/optimizer_states.h"

namespace lockstep::checkpointing {
namespace {

[[noreturn]] void refuse(const std::string& name, const char* why) {
  throw_error<ArgumentError>(
      "'{}' cannot be part of an elastic run yet: {}; run it without --on-loss replace, with checkpoints",
      name, why);
}

// fully_shard() and parallelize_module() see by guards where a parameter is used.
void refuse_shards(const std::string& name, const std::vector<at::Tensor>& parameters) {
  const auto is_shard = [](const at::Tensor& each) {
    return optim::rows_of(each) != nullptr || (each.has_storage() && intercept::has_guard(each));
  };
  if (std::ranges::any_of(parameters, is_shard))
    refuse(name, "its parameters are distributed over the ranks (fully_shard(), parallelize_module())");
}

void drop_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) parameter.mutable_grad().reset();
}

}  // namespace

Value own_state(const std::string& name, const torch::nn::Module& module) {
  refuse_shards(name, module.parameters());
  return lockstep::state_dict(module);
}

Value own_state(const std::string& name, const torch::optim::Optimizer& optimizer) {
  const auto* const distributed = dynamic_cast<const optim::DistributedStates*>(&optimizer);
  for (const auto& group : optimizer.param_groups()) {
    refuse_shards(name, group.params());
    for (const auto& parameter : group.params()) {
      if (distributed != nullptr && distributed->sharing_of(parameter))
        refuse(name, "its parameters lie in memory that the ranks share (share_parameters())");
    }
  }
  return optim::states_of_rank(optimizer);
}

Dict TrainingStateAccess::own_state_dict(const TrainingState& state) {
  Dict dict;
  for (const auto& entry : state.entries_) dict.set(entry.name, entry.own.save());
  return dict;
}

void TrainingStateAccess::load_own_state_dict(const TrainingState& state, const Dict& saved) {
  // Those of a step that has failed; parts may restore others.
  for (auto* const module : modules(state)) drop_gradients(module->parameters());
  for (auto* const optimizer : state.optimizers_)
    for (const auto& group : optimizer->param_groups()) drop_gradients(group.params());
  for (const auto& entry : state.entries_) {
    try {
      entry.own.load(saved.at(entry.name));
    } catch (const CheckpointError& error) {
      throw_error<CheckpointError>("'{}' of the commit does not fit: {}", entry.name, error.what());
    }
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

const std::optional<ProcessGroup>& TrainingStateAccess::group(const TrainingState& state) {
  return state.group_;
}

void TrainingStateAccess::set_committer(TrainingState& state, Committer* committer) {
  state.committer_ = committer;
}

}  // namespace lockstep::checkpointing
