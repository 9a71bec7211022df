// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <source_location>
#include <type_traits>

#include <torch/nn/module.h>

namespace lockstep {

/// A pointer to a module: a TORCH_MODULE holder, a shared_ptr, a DistributedDataParallel or a DataParallel.
template <typename Pointer>
concept ModulePointer = requires(const Pointer& pointer) {
  { *pointer } -> std::convertible_to<const torch::nn::Module&>;
};

/// Throws ArgumentError, with the caller's line, for an empty holder or a null pointer.
[[noreturn]] void refuse_null_module(std::source_location where);

/// The type of an argument that is a module. A module, or a ModulePointer to one, converts to it:
///
///     Net net;                                 // TORCH_MODULE(Net)
///     auto shared = std::make_shared<NetImpl>();
///     lockstep::freeze(net, {"backbone"});     // as well as *net, shared and *shared
///
/// `Module` is torch::nn::Module, or const torch::nn::Module for functions that do not change the module. It is
/// a reference: the module must outlive it. Throws ArgumentError, with the caller's line, for an empty holder
/// or a null pointer.
template <typename Module>
class BasicModuleRef {
 public:
  BasicModuleRef(Module& module) : module_(&module) {}  // NOLINT: implicit

  template <typename Pointer>
    requires ModulePointer<std::remove_cvref_t<Pointer>> && requires(Pointer& pointer) {
      { *pointer } -> std::convertible_to<Module&>;
    }
  BasicModuleRef(Pointer&& pointer,  // NOLINT: implicit
                 std::source_location where = std::source_location::current())
      : module_((is_null(pointer) ? refuse_null_module(where) : void(), &static_cast<Module&>(*pointer))) {}

  Module& operator*() const { return *module_; }
  Module* operator->() const { return module_; }
  operator Module&() const { return *module_; }  // NOLINT: implicit

 private:
  template <typename Pointer>
  static bool is_null(const Pointer& pointer) {
    if constexpr (requires { pointer.is_empty(); }) {
      return pointer.is_empty();
    } else if constexpr (requires { pointer == nullptr; }) {
      return pointer == nullptr;
    } else {
      return false;
    }
  }

  Module* module_;
};

/// A module that the function changes.
using ModuleRef = BasicModuleRef<torch::nn::Module>;
/// A module that the function reads.
using ConstModuleRef = BasicModuleRef<const torch::nn::Module>;

}  // namespace lockstep
