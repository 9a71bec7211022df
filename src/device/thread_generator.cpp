// SPDX-License-Identifier: BSD-3-Clause
#include "device/thread_generator.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace lockstep::device {
namespace {

// Precedes every key that LibTorch uses outside its own tests.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

std::optional<at::Generator>& thread_generator() {
  thread_local std::optional<at::Generator> generator;
  return generator;
}

bool takes_generator(const c10::Argument& argument) {
  const auto* const optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

bool is_on_cpu(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu();
}

void call_with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  // An operator without CPU tensors may call one with them, which then gets the generator.
  if (thread_generator() && std::any_of(values, stack->end(), is_on_cpu)) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      auto& value = values[static_cast<std::ptrdiff_t>(i)];
      if (value.isNone() && takes_generator(arguments[i])) value = *thread_generator();
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// Never unregistered: other threads may still call the kernels.
void register_once() {
  // Used: otherwise the leak sanitizer does not find the address, which the compiler drops.
  [[gnu::used]] static const auto& libraries = *[] {
    auto* const kept = new std::vector<std::unique_ptr<torch::Library>>;
    auto& made = *kept;
    made.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__));
    made.back()->fallback(torch::CppFunction::makeFallthrough());
    made.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__));
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !name.name.starts_with("aten::")) continue;
      if (!std::ranges::any_of(op->schema().arguments(), takes_generator)) continue;
      const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      made.back()->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&call_with_generator>());
    }
    return kept;
  }();
}

}  // namespace

at::Generator seeded_generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

std::int64_t draw_seed(const std::optional<at::Generator>& generator) {
  return at::empty({}, at::kLong).random_(generator).item<std::int64_t>();
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

ThreadGenerator::ThreadGenerator(at::Generator generator)
    : key_((register_once(), c10::DispatchKeySet(kKey))) {
  thread_generator() = std::move(generator);
}

void ThreadGenerator::register_kernels() { register_once(); }

ThreadGenerator::~ThreadGenerator() { thread_generator().reset(); }

std::optional<at::Generator> ThreadGenerator::current() { return thread_generator(); }

}  // namespace lockstep::device
