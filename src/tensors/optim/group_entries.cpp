// SPDX-License-Identifier: BSD-3-Clause
#include "optim/group_entries.h"

#include <mutex>

#include <lockstep/base/error.h>

#include "serialize/plain_values.h"

namespace lockstep::optim {
namespace {

struct KnownEntries {
  std::mutex mutex;
  std::map<const torch::optim::Optimizer*, std::weak_ptr<GroupEntries>> by_optimizer;
};

KnownEntries& known_entries() {
  static auto& known = *new KnownEntries;  // schedulers may be destroyed after static objects
  return known;
}

std::shared_ptr<GroupEntries> existing_entries(const torch::optim::Optimizer& optimizer) {
  auto& known = known_entries();
  const std::lock_guard lock(known.mutex);
  const auto found = known.by_optimizer.find(&optimizer);
  return found == known.by_optimizer.end() ? nullptr : found->second.lock();
}

constexpr auto kEntryNames = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"};

}  // namespace

std::shared_ptr<GroupEntries> shared_entries(const torch::optim::Optimizer& optimizer) {
  auto& known = known_entries();
  const std::lock_guard lock(known.mutex);
  auto& kept = known.by_optimizer[&optimizer];
  if (auto entries = kept.lock()) return entries;
  const auto forget = [&optimizer](GroupEntries* entries) {
    delete entries;
    auto& all = known_entries();
    const std::lock_guard locked(all.mutex);
    const auto found = all.by_optimizer.find(&optimizer);
    if (found != all.by_optimizer.end() && found->second.expired()) all.by_optimizer.erase(found);
  };
  const std::shared_ptr<GroupEntries> entries(new GroupEntries, forget);
  kept = entries;
  return entries;
}

void check_complete(const torch::optim::Optimizer& optimizer) {
  const auto entries = existing_entries(optimizer);
  if (entries && !entries->incomplete.empty()) throw ArgumentError(entries->incomplete);
}

bool consolidate(const torch::optim::Optimizer& optimizer) {
  const auto entries = existing_entries(optimizer);
  if (!entries || !entries->consolidate) return false;
  entries->consolidate();
  return true;
}

void write_entries(const torch::optim::Optimizer& optimizer, std::size_t index, Dict& group) {
  const auto entries = existing_entries(optimizer);
  if (!entries || index >= entries->groups.size()) return;
  for (const auto& [name, value] : entries->groups[index]) group.set(name, value);
}

void read_entries(const torch::optim::Optimizer& optimizer, std::size_t index, const Dict& group) {
  const auto entries = existing_entries(optimizer);
  if (!entries || index >= entries->groups.size()) return;
  for (const auto* name : kEntryNames) {
    if (const auto* value = group.find(name)) entries->groups[index][name] = serialize::number_of(*value);
  }
}

}  // namespace lockstep::optim
