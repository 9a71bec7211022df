// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "device/module_snapshot.h"
#include "fsdp/step_calls.h"

namespace lockstep::fsdp {

class ParameterGroup;

// The module may change after fully_shard(). Parameters that are frozen or unfrozen on all ranks are
// followed; what would train without reduction, or from other memory, is refused on all ranks before a
// gradient is used.
class ModuleCheck {
 public:
  using Groups = std::vector<std::shared_ptr<ParameterGroup>>;

  // From now on the module has to keep its parameters. `caller`: "net.cpp:7: fully_shard()".
  void watch(const torch::nn::Module& module, std::string caller);
  // Throws ArgumentError if the module's parameters are not those of the groups.
  void check_parameters(const Groups& groups, const StepCalls& calls);
  // Follows parameters that were frozen or unfrozen, too. Throws DesyncError on all ranks unless they were on
  // all. Collective if they were.
  void check(const Groups& groups, StepCalls& calls);

 private:
  // The outermost module, unless it is in no shared_ptr.
  struct Watched {
    std::weak_ptr<const torch::nn::Module> module;
    device::ModuleSnapshot known;
  };

  std::optional<Watched> watched_;
  std::string caller_;
};

}  // namespace lockstep::fsdp
