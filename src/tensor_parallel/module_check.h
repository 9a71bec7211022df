// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include "ddp/change_agreement.h"
#include "device/module_snapshot.h"

namespace lockstep::tensor_parallel {

// Notices that a module no longer has the parameters that parallelize_module() changed: others would be
// whole on each rank, and their gradients would not be summed.
class ModuleCheck {
 public:
  ModuleCheck(const torch::nn::Module& module, std::source_location where);
  // Throws ArgumentError with the parameter's name.
  void check() const;
  // While the result lives, this rank's waits for ranks of its host end when one of them refuses a change.
  [[nodiscard]] auto listen() const {
    for (const auto& each : agreements_) each.begin_listening();
    return c10::make_scope_exit([this] {
      for (const auto& each : agreements_) each.end_listening();
    });
  }

 private:
  struct Planned {
    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  };
  [[noreturn]] void refuse(const std::string& change) const;

  std::weak_ptr<const torch::nn::Module> module_;  // expired: it is in no shared_ptr
  device::ModuleSnapshot known_;
  std::vector<Planned> planned_;
  std::vector<ddp::ChangeAgreement> agreements_;  // in each group of the planned parameters
  std::source_location where_;
};

// From now on, operators that use the first or the last parameter of the module's plan check the module. All
// operators that use one of them end when another rank refuses a change. All ranks of a group call it in the
// same order.
void watch_module(const torch::nn::Module& module, std::source_location where);

}  // namespace lockstep::tensor_parallel
