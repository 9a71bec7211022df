// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/stage_check.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "modules/agreement.h"
#include "runtime/run.h"

namespace lockstep::pipelining {

std::vector<ProcessGroup> groups_of(const std::vector<PipelineStage>& stages, const char* user) {
  if (stages.empty()) throw_error<ArgumentError>("{} needs a stage on each rank; pass at least one", user);
  std::vector<ProcessGroup> groups{runtime::required_group(stages.front().options().group, user)};
  auto in_order = stages;
  std::ranges::sort(in_order, {}, &PipelineStage::stage_index);
  for (const auto& stage : in_order) {
    const auto& replicas = stage.options().data_parallel_group;
    const auto is_same = [&](const auto& known) { return known.backend() == replicas->backend(); };
    if (replicas && std::ranges::none_of(groups, is_same)) groups.push_back(*replicas);
  }
  return groups;
}

StageCheck::StageCheck(const PipelineStage& stage) : stage_(stage), module_(*stage.submodule()) {
  for (const auto& [name, tensor] : stage.submodule()->named_parameters().pairs())
    parameters_.push_back(
        {name, tensor, tensor.requires_grad(), tensor.scalar_type(), tensor.device(), tensor.sizes().vec()});
}

std::string StageCheck::change_of_trained() const {
  std::vector<std::string> changes;
  for (const auto& each : parameters_) {
    if (each.parameter.requires_grad() == each.trained) continue;
    changes.push_back(
        fmt::format("parameter {} has been {}", each.name, each.trained ? "frozen" : "unfrozen"));
  }
  return changes.empty() ? "" : fmt::format("stage {}: {}", stage_.stage_index(), fmt::join(changes, "; "));
}

void StageCheck::note_trained() {
  for (auto& each : parameters_) each.trained = each.parameter.requires_grad();
}

std::string StageCheck::lines() const {
  std::string lines;
  for (const auto& each : parameters_)
    lines += modules::describe("parameter", {each.name, each.parameter}) +
             (each.parameter.requires_grad() ? "\n" : ", no gradient\n");
  return lines;
}

std::string StageCheck::change() const {
  const auto what = changed_parameter();
  if (what.empty()) return "";
  return fmt::format(
      "stage {}: {} since the first run; construct a new schedule of the changed stages on all ranks",
      stage_.stage_index(), what);
}

std::string StageCheck::changed_parameter() const {
  const auto& module = *stage_.submodule();
  if (!module_.matches(module)) {
    if (auto difference = module_.difference(module); !difference.empty()) return difference;
  }
  for (const auto& [name, now, trained, dtype, device, sizes] : parameters_) {
    if (now.device() != device) {
      return fmt::format("parameter {} was on {} and is on {}", name, device.str(), now.device().str());
    }
    if (now.scalar_type() == dtype && now.sizes() == at::IntArrayRef(sizes)) continue;
    return fmt::format("parameter {} was {}[{}] and is {}[{}]", name, c10::toString(dtype),
                       fmt::join(sizes, ", "), c10::toString(now.scalar_type()),
                       fmt::join(now.sizes(), ", "));
  }
  return "";
}

}  // namespace lockstep::pipelining
