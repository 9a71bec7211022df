// SPDX-License-Identifier: BSD-3-Clause
#include "training/commit_parts.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/ddp/distributed_data_parallel.h>

#include "base/throw_error.h"
#include "checkpoint/training_state_access.h"
#include "modules/bucket_order.h"

namespace lockstep::training {
namespace {

using Access = checkpointing::TrainingStateAccess;

// The parameters that all ranks have alike.
class AveragedParameters {
 public:
  explicit AveragedParameters(const TrainingState& state) {
    for (const auto* const module : Access::modules(state)) {
      const auto* const ddp = dynamic_cast<const DistributedDataParallelModule*>(module);
      if (ddp == nullptr) continue;
      for (const auto& parameter : ddp->averaged_parameters()) {
        tensors_.insert(parameter.unsafeGetTensorImpl());
        bytes_at_.emplace(parameter.const_data_ptr(), parameter.nbytes());
      }
    }
  }

  // A state dict has other tensors on the memory of the parameters, tied ones under several names.
  bool have(const Value& value) const {
    const auto* const tensor = value.get_if<at::Tensor>();
    if (tensor == nullptr || tensor->numel() == 0) return false;
    const auto found = bytes_at_.find(tensor->const_data_ptr());
    return found != bytes_at_.end() && found->second == tensor->nbytes();
  }

  bool have_all_of(const torch::optim::Optimizer& optimizer) const {
    if (dynamic_cast<const optim::DistributedStates*>(&optimizer) != nullptr) return false;
    return std::ranges::all_of(optimizer.param_groups(), [&](const auto& group) {
      return std::ranges::all_of(group.params(), [&](const auto& parameter) {
        return tensors_.contains(parameter.unsafeGetTensorImpl());
      });
    });
  }

 private:
  std::unordered_set<const void*> tensors_;
  std::unordered_map<const void*, std::size_t> bytes_at_;
};

// Each once, in an order that all ranks have.
std::vector<DistributedDataParallelModule*> ddp_modules(const TrainingState& state) {
  std::vector<DistributedDataParallelModule*> found;
  for (auto* const module : Access::modules(state)) {
    module->apply([&](torch::nn::Module& each) {
      auto* const ddp = dynamic_cast<DistributedDataParallelModule*>(&each);
      if (ddp != nullptr && std::ranges::find(found, ddp) == found.end()) found.push_back(ddp);
    });
  }
  return found;
}

}  // namespace

CommitParts divided(const TrainingState& state, const Dict& complete) {
  const AveragedParameters averaged(state);
  const auto optimizers = Access::optimizers_by_part(state, complete);
  CommitParts parts;
  for (const auto& [name, value] : complete) {
    const auto optimizer = optimizers.find(name.as_string());
    if (optimizer != optimizers.end() && averaged.have_all_of(*optimizer->second)) {
      parts.common.set(name, value);
      continue;
    }
    const auto* const tensors = value.get_if<Dict>();
    const auto is_averaged = [&](const auto& item) { return averaged.have(item.value); };
    if (tensors == nullptr || std::none_of(tensors->begin(), tensors->end(), is_averaged)) {
      parts.own.set(name, value);
      continue;
    }
    Dict own(tensors->kind()), common(tensors->kind());
    own.set_attributes(tensors->attributes());
    for (const auto& [key, tensor] : *tensors) (averaged.have(tensor) ? common : own).set(key, tensor);
    parts.own.set(name, std::move(own));
    parts.common.set(name, std::move(common));
  }
  return parts;
}

Dict joined(CommitParts parts) {
  for (const auto& [name, value] : parts.common) {
    if (auto* const own = parts.own.find(name)) {
      for (const auto& [key, tensor] : value.as_dict()) own->as_dict().set(key, tensor);
    } else {
      parts.own.set(name, value);
    }
  }
  return std::move(parts.own);
}

std::vector<Value> bucket_orders(const TrainingState& state) {
  std::vector<Value> orders;
  for (const auto* const module : ddp_modules(state))
    orders.emplace_back(at::tensor(ddp::BucketOrder::of(*module)));
  return orders;
}

void restore_bucket_orders(const TrainingState& state, const std::vector<Value>& orders) {
  const auto modules = ddp_modules(state);
  if (modules.size() != orders.size()) {
    throw_error<CheckpointError>(
        "the commit is of {} DistributedDataParallel modules, but the state has {}; the program before elastic::run() "
        "has to make the same modules at each start",
        orders.size(), modules.size());
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const auto& order = orders[i].as_tensor();
    const auto* const first = order.const_data_ptr<std::int64_t>();
    ddp::BucketOrder::restore(*modules[i], {first, first + order.numel()});
  }
}

}  // namespace lockstep::training
