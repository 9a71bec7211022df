// SPDX-License-Identifier: BSD-3-Clause
#include "intercept/thread_defaults.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <lockstep/device/device.h>

namespace lockstep::intercept {
namespace {

// Precedes every key that LibTorch uses outside its own tests. A thread includes the key while it has one of
// the defaults; operators without a kernel here fall through at no cost.
constexpr auto kModeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct CallDefaults {
  std::optional<at::Generator> generator = {};  // with CPU tensors
  std::optional<c10::Device> device = {};       // operators that create tensors from nothing
};

CallDefaults& call_defaults() {
  thread_local CallDefaults defaults;
  return defaults;
}

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

// Each registers its kernels once for the process, while no other thread calls such operators. Libraries are
// never unregistered: other threads may still call the kernels. They are used: otherwise the leak sanitizer
// does not find the address, which the compiler drops.

void register_generator_kernels() {
  [[gnu::used]] static const auto& libraries = *[] {
    auto* const kept = new Libraries;
    add_library(*kept, "_").fallback(torch::CppFunction::makeFallthrough());
    add_kernels(*kept, is_random);
    return kept;
  }();
}

// And the generators'; operators of threads with a generator then cost more.
void register_factory_kernels() {
  register_generator_kernels();
  [[gnu::used]] static const auto& libraries = *[] {
    auto* const kept = new Libraries;
    add_kernels(*kept, [](const auto& schema) { return is_factory(schema) && !is_random(schema); });
    return kept;
  }();
}

}  // namespace

ThreadGenerator::ThreadGenerator(at::Generator generator)
    : key_((register_generator_kernels(), c10::DispatchKeySet(kModeKey))) {
  call_defaults().generator = std::move(generator);
}

void ThreadGenerator::register_kernels() { register_generator_kernels(); }

ThreadGenerator::~ThreadGenerator() { call_defaults().generator.reset(); }

std::optional<at::Generator> ThreadGenerator::current() { return call_defaults().generator; }

}  // namespace lockstep::intercept

namespace lockstep {

DeviceContext::DeviceContext(DeviceId device)
    : key_((intercept::register_factory_kernels(), c10::DispatchKeySet(intercept::kModeKey))),
      outer_(std::exchange(intercept::call_defaults().device, c10::Device(device))) {}

DeviceContext::~DeviceContext() { intercept::call_defaults().device = outer_; }

}  // namespace lockstep
