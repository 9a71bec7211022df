// SPDX-License-Identifier: BSD-3-Clause
#include "nn/module_copy.h"

#include <typeinfo>

#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>

#include <lockstep/nn/wrapped_module.h>
#include <lockstep/runtime/default_group.h>

#include "base/throw_error.h"
#include "device/generators.h"

namespace lockstep::nn {
namespace {

[[noreturn]] void refuse_copy(const torch::nn::Module& module, const char* user, const char* otherwise,
                              const std::string& reason) {
  if (dynamic_cast<const WrapperModule*>(&module) != nullptr) {
    throw_error<ArgumentError>("{}: a {} cannot be cloned; give the module that it wraps, its module()", user,
                               module.name());
  }
  throw_error<ArgumentError>(
      "{}: the module {} cannot be cloned; derive it and its submodules from torch::nn::Cloneable, with "
      "reset() registering all that they have{}. {}",
      user, module.name(), otherwise, reason);
}

}  // namespace

std::shared_ptr<torch::nn::Module> make_module(const MakeModule& make) {
  const auto restore = c10::make_scope_exit(
      [state = device::state_of(default_generator())] { device::set_state(default_generator(), state); });
  return make();
}

std::shared_ptr<torch::nn::Module> copy_module(const torch::nn::Module& module, const char* user,
                                               const char* otherwise, std::optional<c10::Device> device) {
  std::shared_ptr<torch::nn::Module> copy;
  try {
    copy = make_module([&] { return module.clone(device); });
  } catch (const c10::Error& error) {
    refuse_copy(module, user, otherwise, std::string("LibTorch's error: ") + error.what_without_backtrace());
  }
  // clone() of Cloneable<Base> makes a Base.
  const auto* const made = copy.get();
  if (made == nullptr || typeid(*made) != typeid(module)) {
    refuse_copy(module, user, otherwise,
                "Its clone() returned " + (copy ? "a " + copy->name() : std::string("no module")));
  }
  return copy;
}

}  // namespace lockstep::nn
