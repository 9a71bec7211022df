// SPDX-License-Identifier: BSD-3-Clause
#include <unordered_set>

#include <lockstep/nn/wrapped_module.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "intercept/storage_guard.h"
#include "modules/experts.h"
#include "modules/rank_part.h"
#include "nn/synced_batch_norm.h"
#include "runtime/run.h"

namespace lockstep::nn {
namespace {

void refuse_parts(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    if (const auto* const part = modules::rank_part_of(parameter.value())) {
      part->owner().require_can_rejoin();
    } else if (intercept::has_guard(parameter.value())) {
      throw_error<ArgumentError>(
          "{} of parallelize_module() cannot be part of an elastic run yet: ranks have parts of it",
          parameter.key());
    }
  }
  const auto experts = modules::expert_tensors(module);
  if (experts.empty()) return;
  throw_error<ArgumentError>(
      "{} of MixtureOfExperts cannot be part of an elastic run yet: other ranks have other experts",
      experts.front().name);
}

void refuse_other_groups(const torch::nn::Module& module) {
  for (const auto& layer : synced_layers(module)) {
    const auto own = runtime::group_or_default({}, "SyncBatchNorm");
    if (!layer.group || (own && &comm::state_of(*layer.group) == &comm::state_of(*own))) continue;
    throw_error<ArgumentError>(
        "{}, a SyncBatchNorm over another process group than the default one, cannot be part of an elastic run "
        "yet; leave out the group",
        layer.name);
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> owner_of(const torch::nn::Module& module) {
  const auto owner = module.weak_from_this().lock();
  if (owner == nullptr)
    throw_error<ArgumentError>(
        "no shared_ptr owns the module {}; construct it as a TORCH_MODULE holder or by std::make_shared()",
        module.name());
  // A wrapper shares and trains the module, as with a const holder, which points to a module that is not const.
  return std::const_pointer_cast<torch::nn::Module>(owner);
}

void require_can_rejoin(ConstModuleRef module) {
  module->apply([](const torch::nn::Module& each) {
    if (const auto* const wrapper = dynamic_cast<const WrapperModule*>(&each)) wrapper->require_can_rejoin();
  });
  refuse_parts(module);
  refuse_other_groups(module);
}

void rejoin(ModuleRef module) {
  std::unordered_set<const torch::nn::Module*> done;  // a module may have several names
  module->apply([&](torch::nn::Module& each) {
    auto* const wrapper = dynamic_cast<WrapperModule*>(&each);
    if (wrapper != nullptr && done.insert(wrapper).second) wrapper->rejoin();
  });
  std::unordered_set<modules::RankPartOwner*> owners;
  for (const auto& parameter : module->parameters()) {
    const auto* const part = modules::rank_part_of(parameter);
    if (part != nullptr) owners.insert(&part->owner());
  }
  for (auto* const owner : owners) owner->rejoin();
}

}  // namespace lockstep::nn
