// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/step_calls.h"

#include <algorithm>
#include <utility>

#include "modules/agreement.h"

namespace lockstep::fsdp {

void StepCalls::add(const std::vector<ProcessGroup>& ranks) {
  for (const auto& each : ranks)
    if (agreement_of(each) == nullptr) agreements_.emplace_back(each);
}

void StepCalls::adopt(StepCalls& other) {
  for (auto& each : other.agreements_)
    if (agreement_of(each.group()) == nullptr) agreements_.push_back(std::move(each));
  other.agreements_.clear();
}

void StepCalls::rejoin() {
  record = {};
  splits = {};
  for (auto& each : agreements_) each = modules::ChangeAgreement(each.group());
}

void StepCalls::refuse(const std::string& why) const {
  for (const auto& each : agreements_) each.refuse(why);
  throw ArgumentError(why);
}

void StepCalls::confirm(const std::string& change, const modules::ModuleText& now,
                        std::source_location where) {
  for (auto& each : agreements_) end_all_on_failure_in(each, [&] { each.confirm(change, now, where); });
}

const modules::ChangeAgreement* StepCalls::agreement_of(const ProcessGroup& ranks) const {
  const auto found = std::ranges::find_if(
      agreements_, [&](const auto& each) { return each.group().backend() == ranks.backend(); });
  return found == agreements_.end() ? nullptr : &*found;
}

}  // namespace lockstep::fsdp
