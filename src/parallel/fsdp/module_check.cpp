// SPDX-License-Identifier: BSD-3-Clause
// The module may change after fully_shard(). Parameters that are frozen or unfrozen on all ranks are
// followed; what would train without reduction, or from other memory, is refused on all ranks before a
// gradient is used.
#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"

namespace lockstep::fsdp {

ParameterGroup::Changes ParameterGroup::changes() const {
  Changes found;
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (!whole.defined()) continue;
    if (found.moved == nullptr && intercept::memory_guard_of(whole) == nullptr) found.moved = &parameter;
    if (found.retrained == nullptr && whole.requires_grad() != parameter.trained)
      found.retrained = &parameter;
  }
  return found;
}

void ParameterGroup::follow_training() {
  for (auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (!whole.defined() || whole.requires_grad() == parameter.trained) continue;
    parameter.trained = whole.requires_grad();
    parameter.shard.set_requires_grad(parameter.trained);
    trained_ += parameter.trained ? 1 : -1;
  }
}

std::string ParameterGroup::training_text() const {
  std::string lines;
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    const bool trained = whole.defined() ? whole.requires_grad() : parameter.trained;
    lines += fmt::format("parameter {}\t{}\n", parameter.name, trained ? "trained" : "frozen");
  }
  return lines;
}

const modules::ChangeAgreement* Tree::agreement_of(const ProcessGroup& ranks) const {
  const auto found = std::ranges::find_if(
      agreements_, [&](const auto& each) { return each.group().backend() == ranks.backend(); });
  return found == agreements_.end() ? nullptr : &*found;
}

void Tree::adopt_agreements(Tree& other) {
  for (auto& each : other.agreements_)
    if (agreement_of(each.group()) == nullptr) agreements_.push_back(std::move(each));
  other.agreements_.clear();
}

void Tree::watch(const torch::nn::Module& module, const std::string& caller,
                 const std::vector<ProcessGroup>& ranks) {
  caller_ = caller;
  for (const auto& each : ranks)
    if (agreement_of(each) == nullptr) agreements_.emplace_back(each);
  watched_.reset();
  if (const auto self = module.weak_from_this(); !self.expired())
    watched_.emplace(Watched{self, device::ModuleSnapshot(module)});
}

void Tree::refuse(const std::string& change) const {
  const auto message = fmt::format("{}: {}", caller_, change);
  for (const auto& each : agreements_) each.refuse(message);
  throw ArgumentError(message);
}

void Tree::check_parameters() {
  check();
  const auto module = watched_ ? watched_->module.lock() : nullptr;
  if (module && !watched_->known.matches(*module)) {
    const auto difference = watched_->known.difference(*module);
    if (!difference.empty()) {
      refuse(difference +
             " since this call, so its gradients would not be reduced; change the module on all ranks before "
             "fully_shard(), or shard the changed module anew");
    }
    watched_->known = device::ModuleSnapshot(*module);
  }
  for (const auto* const group : groups) {
    const auto* const moved = group->changes().moved;
    if (moved == nullptr) continue;
    refuse(
        fmt::format("parameter {}: its data was replaced (to(), set_data()) since this call; call to(), "
                    "set_data() and torch::load() before fully_shard()",
                    moved->name));
  }
}

void Tree::check_module() {
  check_parameters();
  for (const auto* const group : groups) {
    const auto* const retrained = group->changes().retrained;
    if (retrained == nullptr) continue;
    return confirm(
        fmt::format("parameter {} has been {}", retrained->name, retrained->trained ? "frozen" : "unfrozen"));
  }
}

void Tree::confirm(const std::string& change) {
  std::string lines;
  for (const auto* const group : groups) lines += group->training_text();
  const modules::ModuleText now{
      .user = caller_,
      .lines = lines,
      .advice = "Freeze and unfreeze the same parameters on all ranks before the same step"};
  for (auto& each : agreements_)
    end_all_on_failure_in(each, [&] { each.confirm(change, now, groups.front()->where()); });
  for (auto* const group : groups) group->follow_training();
}

}  // namespace lockstep::fsdp
