// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"
#include "modules/agreement.h"

namespace lockstep::fsdp {
namespace {

// The first parameter of the group for which `is_it(parameter, whole)` holds; nullptr: none.
template <typename Predicate>
const ShardedParameter* find(const ParameterGroup& group, const Predicate& is_it) {
  for (const auto& parameter : group.parameters()) {
    const auto whole = parameter.lock_whole();
    if (whole.defined() && is_it(parameter, whole)) return &parameter;
  }
  return nullptr;
}

bool is_retrained(const ShardedParameter& parameter, const at::Tensor& whole) {
  return whole.requires_grad() != parameter.trained;
}

// A line for each parameter: whether the module's requires a gradient.
std::string training_text(const ParameterGroup& group) {
  std::string lines;
  for (const auto& parameter : group.parameters()) {
    const auto whole = parameter.lock_whole();
    const bool trained = whole.defined() ? whole.requires_grad() : parameter.trained;
    lines += fmt::format("parameter {}\t{}\n", parameter.name, trained ? "trained" : "frozen");
  }
  return lines;
}

}  // namespace

// The module may change after fully_shard(). Parameters that are frozen or unfrozen on all ranks are
// followed; what would train without reduction, or from other memory, is refused on all ranks before a
// gradient is used.
void Tree::check_parameters_of(const Groups& all) {
  throw_if_failed();
  const auto module = watched_ ? watched_->module.lock() : nullptr;
  if (module && !watched_->known.matches(*module)) {
    const auto difference = watched_->known.difference(*module);
    if (!difference.empty()) {
      calls_.refuse(fmt::format(
          "{}: {} since this call, so its gradients would not be reduced; change the module on all ranks "
          "before fully_shard(), or shard the changed module anew",
          caller_, difference));
    }
    watched_->known = device::ModuleSnapshot(*module);
  }
  for (const auto& group : all) {
    const auto* const moved = find(
        *group, [](const auto&, const auto& whole) { return intercept::memory_guard_of(whole) == nullptr; });
    if (moved == nullptr) continue;
    calls_.refuse(
        fmt::format("{}: parameter {}: its data was replaced (to(), set_data()) since this call; call to(), "
                    "set_data() and torch::load() before fully_shard()",
                    caller_, moved->name));
  }
}

void Tree::check_module_of(const Groups& all) {
  check_parameters_of(all);
  const ShardedParameter* first = nullptr;
  for (std::size_t i = 0; i < all.size() && first == nullptr; ++i) first = find(*all[i], is_retrained);
  if (first == nullptr) return;
  std::string lines;
  for (const auto& group : all) lines += training_text(*group);
  const modules::ModuleText now{
      .user = caller_,
      .lines = lines,
      .advice = "Freeze and unfreeze the same parameters on all ranks before the same step"};
  calls_.confirm(fmt::format("parameter {} has been {}", first->name, first->trained ? "frozen" : "unfrozen"),
                 now, all.front()->where());
  for (const auto& group : all) group->follow_training();
}

}  // namespace lockstep::fsdp
