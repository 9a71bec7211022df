// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/device/module_ref.h>
#include <lockstep/nn/data_parallel.h>

namespace lockstep {

/// Names of modules and their devices. Each component of a name may have the wildcards *, ? and [] of
/// Python's `fnmatch`; "" is the module itself. Later entries win. accelerate: `device_map`.
using DeviceMap = std::vector<std::pair<std::string, DeviceId>>;
/// The device of a module, or nullopt: that of its parent. Called for parents before their children.
using DeviceOfModule =
    std::function<std::optional<c10::Device>(const std::string& name, const torch::nn::Module& module)>;

/// Model parallel: the layers of one module on several devices of this process. The module's code stays as it
/// is.
///
///     ModelParallel parts(net, {{"layers.[01]", 0}, {"layers.[23]", 1}, {"head", 1}});
///     torch::optim::AdamW optimizer(net->parameters());
///     DistributedDataParallel ddp(net);                    // or none
///     {
///       const auto scope = parts.follow();
///       loss = torch::nn::functional::cross_entropy(ddp->forward(x), target);
///     }
///     loss.backward();
///
/// accelerate: `dispatch_model`. Not in PyTorch, where forward() calls `to()` between the layers.
class ModelParallel {
 public:
  /// Moves parameters and buffers. Make optimizers and DistributedDataParallel afterwards, which needs
  /// devices of one type. Tied parameters are on one device. Throws ArgumentError, with the caller's line,
  /// for a name that no module has. The module must outlive this object.
  ModelParallel(ModuleRef module, const DeviceMap& device_map,
                std::source_location where = std::source_location::current());
  ModelParallel(ModuleRef module, const DeviceOfModule& device_of);

  class Scope;
  /// While the result lives, an operator of this thread whose tensors are on several devices gets them all on
  /// one: that of the tensor that it changes, else that of a parameter or buffer of the module, else the one
  /// of the last parameter or buffer that was used. An operator that changes tensors on several devices, such
  /// as _foreach_mul_(), runs as without it. Gradients take the way back. Tensors without dimensions stay on
  /// the CPU. Each operator takes about a microsecond longer.
  [[nodiscard]] Scope follow() const;

 private:
  const torch::nn::Module& module_;
};

/// Movable.
class ModelParallel::Scope {
 public:
  Scope(Scope&&) noexcept;
  ~Scope();

 private:
  friend ModelParallel;
  class State;
  explicit Scope(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
