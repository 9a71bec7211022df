// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::nn {

/// The module type and pointer behind a TORCH_MODULE holder or a shared_ptr of a module.
template <typename Module>
struct WrappedBy {
  using type = typename Module::ContainedType;
  static std::shared_ptr<type> pointer(const Module& module) {
    return module.is_empty() ? nullptr : module.ptr();
  }
};

template <typename Impl>
struct WrappedBy<std::shared_ptr<Impl>> {
  using type = Impl;
  static std::shared_ptr<type> pointer(const std::shared_ptr<Impl>& module) { return module; }
};

/// The base of modules that wrap another one: DataParallel and DistributedDataParallel.
class WrapperModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// The parameters of the wrapped module, each once, as in Python. LibTorch's own function repeats shared
  /// ones, and an optimizer would step them twice.
  std::vector<at::Tensor> parameters() const;
  /// The same with names, which begin with "module.".
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
};

}  // namespace lockstep::nn
