// SPDX-License-Identifier: BSD-3-Clause
#include "modules/rank_part.h"

#include <algorithm>
#include <utility>

#include <lockstep/base/mutex.h>

#include "base/throw_error.h"
#include "intercept/storage_guard.h"

namespace lockstep::modules {
namespace {

struct Owners {
  Mutex mutex;
  std::vector<std::weak_ptr<RankPartOwner>> all LOCKSTEP_GUARDED_BY(mutex);
};

Owners& owners() {
  static Owners of_process;
  return of_process;
}

}  // namespace

void add_owner(std::weak_ptr<RankPartOwner> owner) {
  auto& known = owners();
  const MutexLock lock(known.mutex);
  std::erase_if(known.all, [](const auto& each) { return each.expired(); });
  known.all.push_back(std::move(owner));
}

std::vector<std::shared_ptr<RankPartOwner>> living_owners() {
  auto& known = owners();
  const MutexLock lock(known.mutex);
  std::vector<std::shared_ptr<RankPartOwner>> living;
  for (const auto& each : known.all)
    if (auto owner = each.lock()) living.push_back(std::move(owner));
  return living;
}

RankPart* rank_part_of(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.has_storage()) return nullptr;
  if (intercept::operator_guard_of(parameter) != nullptr) return nullptr;
  return dynamic_cast<RankPart*>(intercept::memory_guard_of(parameter));
}

bool has_rank_parts(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(),
                             [](const auto& each) { return rank_part_of(each) != nullptr; });
}

std::vector<NamedTensor> own_tensors(const torch::nn::Module& module) {
  auto all = distinct(module.named_parameters());
  for (auto& [name, tensor] : all) {
    const auto* const part = rank_part_of(tensor);
    if (part == nullptr) continue;
    tensor = part->part_of(tensor);
    if (tensor.defined()) continue;
    throw_error<ArgumentError>(
        "parameter {} is another tensor with the memory of a sharded parameter, so the rank has no part of it; "
        "register the sharded parameter itself, for example by assigning it: a->weight = b->weight",
        name);
  }
  for (auto& buffer : distinct(module.named_buffers())) all.push_back(std::move(buffer));
  return all;
}

}  // namespace lockstep::modules
