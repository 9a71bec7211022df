// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "device/module_snapshot.h"

namespace lockstep::tensor_parallel {

// Notices that a module no longer has the parameters that parallelize_module() changed: others would be
// whole on each rank, and their gradients would not be summed.
class ModuleCheck {
 public:
  ModuleCheck(const torch::nn::Module& module, std::source_location where);
  // Throws ArgumentError with the parameter's name. A few microseconds.
  void check() const;

 private:
  struct Planned {
    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  };
  [[noreturn]] void refuse(const std::string& change) const;

  std::weak_ptr<const torch::nn::Module> module_;  // expired: it is in no shared_ptr
  device::ModuleSnapshot known_;
  std::vector<Planned> planned_;
  std::source_location where_;
};

// From now on, operators that use the first or the last parameter of the module's plan check the module.
void watch_module(const torch::nn::Module& module, std::source_location where);

}  // namespace lockstep::tensor_parallel
