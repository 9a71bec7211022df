// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/stage_check.h"

#include <fmt/ranges.h>

namespace lockstep::pipelining {

StageCheck::StageCheck(const PipelineStage& stage) : stage_(stage), module_(*stage.submodule()) {
  for (const auto& [name, tensor] : stage.submodule()->named_parameters().pairs())
    parameters_.push_back({name, tensor, tensor.scalar_type(), tensor.device(), tensor.sizes().vec()});
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
  for (const auto& [name, now, dtype, device, sizes] : parameters_) {
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
