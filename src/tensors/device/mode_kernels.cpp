// SPDX-License-Identifier: BSD-3-Clause
#include "device/mode_kernels.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <lockstep/device/device.h>

namespace lockstep::device {
namespace {

using Arguments = std::vector<c10::Argument>;

bool takes_generator(const c10::Argument& argument) {
  const auto* const optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

bool takes_tensors(const c10::Argument& argument) {
  return argument.type()->repr_str().find("Tensor") != std::string::npos;
}

bool is_random(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), takes_generator);
}

bool is_factory(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::ranges::find(arguments, "device", &c10::Argument::name) != arguments.end() &&
         !std::ranges::any_of(arguments, takes_tensors);
}

bool is_on_cpu(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu();
}

void call_with_defaults(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& [generator, device] = call_defaults();
  const auto& arguments = op.schema().arguments();
  const auto values = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  // An operator without CPU tensors may call one with them, which then gets the generator.
  const bool sets_generator = generator && std::any_of(values, stack->end(), is_on_cpu);
  const bool sets_device = device && is_factory(op.schema());
  for (std::size_t i = 0; i < arguments.size() && (sets_generator || sets_device); ++i) {
    auto& value = values[static_cast<std::ptrdiff_t>(i)];
    if (!value.isNone()) continue;
    if (sets_generator && takes_generator(arguments[i])) value = *generator;
    if (sets_device && arguments[i].name() == "device") value = *device;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kModeKey), stack);
}

using Libraries = std::vector<std::unique_ptr<torch::Library>>;

torch::Library& add_library(Libraries& libraries, const char* name) {
  return *libraries.emplace_back(
      std::make_unique<torch::Library>(torch::Library::IMPL, name, kModeKey, __FILE__, __LINE__));
}

template <typename Selects>
void add_kernels(Libraries& libraries, Selects selects) {
  auto& library = add_library(libraries, "aten");
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with("aten::") || !selects(op->schema())) continue;
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&call_with_defaults>());
  }
}

}  // namespace

CallDefaults& call_defaults() {
  thread_local CallDefaults defaults;
  return defaults;
}

// Libraries are never unregistered: other threads may still call the kernels. They are used: otherwise the
// leak sanitizer does not find the address, which the compiler drops.

void register_generator_kernels() {
  [[gnu::used]] static const auto& libraries = *[] {
    auto* const kept = new Libraries;
    add_library(*kept, "_").fallback(torch::CppFunction::makeFallthrough());
    add_kernels(*kept, is_random);
    return kept;
  }();
}

void register_factory_kernels() {
  register_generator_kernels();
  [[gnu::used]] static const auto& libraries = *[] {
    auto* const kept = new Libraries;
    add_kernels(*kept, [](const auto& schema) { return is_factory(schema) && !is_random(schema); });
    return kept;
  }();
}

}  // namespace lockstep::device

namespace lockstep {

DeviceContext::DeviceContext(c10::Device device)
    : key_((device::register_factory_kernels(), c10::DispatchKeySet(device::kModeKey))),
      outer_(std::exchange(device::call_defaults().device, device)) {}

DeviceContext::~DeviceContext() { device::call_defaults().device = outer_; }

}  // namespace lockstep
