// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

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

}  // namespace lockstep::nn
