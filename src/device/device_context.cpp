// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <lockstep/device/device.h>

namespace lockstep {
namespace {

// LibTorch keeps this key for modes of its own tests. It comes before the keys that choose a backend.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

std::optional<c10::Device>& current_device() {
  thread_local std::optional<c10::Device> device;
  return device;
}

void set_current_device(std::optional<c10::Device> device) {
  c10::impl::tls_set_dispatch_key_included(kKey, device.has_value());
  current_device() = device;
}

bool holds_tensors(const c10::Argument& argument) {
  return argument.type()->repr_str().find("Tensor") != std::string::npos;
}

// The argument `device` of an operator that creates a tensor from nothing; -1: it is another operator.
std::ptrdiff_t index_of_device(const std::vector<c10::Argument>& arguments) {
  if (std::ranges::any_of(arguments, holds_tensors)) return -1;
  const auto found = std::ranges::find(arguments, "device", &c10::Argument::name);
  return found == arguments.end() ? -1 : found - arguments.begin();
}

void set_device_of_factory(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto index = index_of_device(arguments);
  if (index >= 0 && current_device()) {
    auto& device = torch::jit::peek(*stack, static_cast<std::size_t>(index), arguments.size());
    if (device.isNone()) device = *current_device();
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&set_device_of_factory>());
}

DeviceContext::DeviceContext(c10::Device device) : outer_(current_device()) { set_current_device(device); }

DeviceContext::~DeviceContext() { set_current_device(outer_); }

}  // namespace lockstep
