// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/mutex.h>

#include "device/module_snapshot.h"
#include "modules/change_agreement.h"

namespace lockstep::tensor_parallel {

// Notices that a module no longer has the parameters that parallelize_module() changed: others would be
// whole on each rank, and their gradients would not be summed. Notices that parameters of the module, in the
// plan or not, are frozen or unfrozen on some ranks only.
class ModuleCheck : public std::enable_shared_from_this<ModuleCheck> {
 private:
  // Before run(), which needs its type.
  [[nodiscard]] auto listen() {
    auto outer = std::exchange(listening(), weak_from_this());
    for (const auto& each : agreements_) each.begin_listening();
    return c10::make_scope_exit([this, outer = std::move(outer)] {
      for (const auto& each : agreements_) each.end_listening();
      listening() = outer;
    });
  }

 public:
  ModuleCheck(const torch::nn::Module& module, std::source_location where);
  // Throws ArgumentError with the parameter's name.
  void check() const;
  // Throws DesyncError on all ranks if parameters are frozen or unfrozen, but not on all. Makes calls if they
  // are on this one.
  void agree_on_trained();
  // Makes this rank's calls. When a rank of its host refuses a change, they end, and then those of the ranks
  // that share another group with this one.
  template <typename Calls>
  auto run(const Calls& calls) {
    const auto listening = listen();
    try {
      return calls();
    } catch (const DesyncError& error) {
      end_others(error.what());
      throw;
    }
  }
  // The one whose run() this thread is in.
  static std::weak_ptr<ModuleCheck>& listening();

 private:
  struct Planned {
    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  };
  struct Trained {
    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    bool known;
    bool is() const { return tensor.expired() ? known : tensor._unsafe_get_target()->requires_grad(); }
  };
  [[noreturn]] void refuse(const std::string& change) const;
  void end_others(const std::string& why) const {
    for (const auto& each : agreements_) each.end_others(why);
  }

  std::weak_ptr<const torch::nn::Module> module_;  // expired: it is in no shared_ptr
  device::ModuleSnapshot known_;
  std::vector<Planned> planned_;
  Mutex mutex_;                                               // backward runs operators in other threads
  std::vector<Trained> trained_ LOCKSTEP_GUARDED_BY(mutex_);  // the module's parameters, each once
  std::vector<modules::ChangeAgreement> agreements_;          // in each group of the planned parameters
  std::source_location where_;
};

// From now on, operators that use the first or the last parameter of the module's plan check the module. All
// operators that use one of them end when another rank refuses a change. All ranks of a group call it in the
// same order.
void watch_module(const torch::nn::Module& module, std::source_location where);

}  // namespace lockstep::tensor_parallel
