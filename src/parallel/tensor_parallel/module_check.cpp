// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/module_check.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "modules/agreement.h"
#include "modules/named_tensors.h"
#include "tensor_parallel/parallel_parameter.h"

namespace lockstep::tensor_parallel {

ModuleCheck::ModuleCheck(const torch::nn::Module& module, std::source_location where)
    : module_(module.weak_from_this()), known_(module), where_(where) {
  for (const auto& [name, tensor] : modules::distinct(module.named_parameters())) {
    const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
    trained_.push_back({name, weak, tensor.requires_grad()});
    const auto* const planned = parallel_parameter(tensor);
    if (planned == nullptr) continue;
    planned_.push_back({name, weak});
    const auto is_same = [&](const auto& known) {
      return known.group().backend() == planned->group().backend();
    };
    if (std::ranges::none_of(agreements_, is_same)) agreements_.emplace_back(planned->group());
  }
}

void ModuleCheck::refuse(const std::string& change) const {
  const auto message = fmt::format(
      "{}parallelize_module(): {}{} since this call, so it would be whole on each rank; change the "
      "module on all ranks before parallelize_module()",
      line_prefix(where_),
      agreements_.empty()
          ? ""
          : numbered_rank(agreements_.front().group().rank(), agreements_.front().group().size()) + ": ",
      change);
  end_others(message);
  throw ArgumentError(message);
}

void ModuleCheck::check() const {
  if (const auto module = module_.lock(); module && !known_.matches(*module)) {
    const auto change = known_.difference(*module);
    if (!change.empty()) refuse(change);
  }
  for (const auto& [name, weak] : planned_) {
    auto impl = weak.lock();
    if (impl && parallel_parameter(at::Tensor(std::move(impl))) == nullptr)
      refuse(fmt::format("parameter {}: its data was replaced (to(), set_data())", name));
  }
}

void ModuleCheck::agree_on_trained() {
  const MutexLock lock(mutex_);
  if (std::ranges::all_of(trained_, [](const Trained& each) { return each.is() == each.known; })) return;
  std::string changes, lines;
  for (const auto& each : trained_) {
    lines += fmt::format("parameter {}\t{}\n", each.name, each.is() ? "trained" : "frozen");
    if (each.is() == each.known) continue;
    changes += fmt::format("{}parameter {} has been {}", changes.empty() ? "" : "; ", each.name,
                           each.known ? "frozen" : "unfrozen");
  }
  const modules::ModuleText now{
      .user = "parallelize_module()",
      .lines = lines,
      .advice = "Freeze and unfreeze parameters on all ranks before the same forward"};
  run([&] {
    for (auto& each : agreements_) each.confirm(changes, now, where_);
  });
  for (auto& each : trained_) each.known = each.is();
}

std::weak_ptr<ModuleCheck>& ModuleCheck::listening() {
  thread_local std::weak_ptr<ModuleCheck> here;
  return here;
}

void watch_module(const torch::nn::Module& module, std::source_location where) {
  const auto check = std::make_shared<ModuleCheck>(module, where);
  ParallelParameter *first = nullptr, *last = nullptr;
  for (const auto& tensor : module.parameters()) {
    auto* const planned = parallel_parameter(tensor);
    if (planned == nullptr) continue;
    if (first == nullptr) first = planned;
    last = planned;
    planned->set_check(check, /*checks=*/false);
  }
  for (auto* const each : {first, last})
    if (each != nullptr) each->set_check(check, /*checks=*/true);
}

}  // namespace lockstep::tensor_parallel
