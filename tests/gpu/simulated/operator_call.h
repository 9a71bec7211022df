// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

// A call of one of LibTorch's operators on a device, taken apart so that it can run later, as a kernel does.
namespace lockstep::simulated {

// A tensor that is known by its address only.
struct TensorRef {
  bool defined = false;
  bool on_device = false;
  const void* data = nullptr;
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
  at::Tensor value;  // of one on the CPU, as it was at the call
};

TensorRef ref_to(const at::Tensor& tensor);
at::Tensor on_cpu(const TensorRef& ref);  // its bytes on the device, for an operator of the CPU
// For the shapes of results: memory cannot be read before the device has come to it, and zeros are valid
// indices.
at::Tensor zeros_like(const TensorRef& ref);

// Gives `change` every tensor of an argument.
template <typename Change>
c10::IValue change_tensors(const c10::IValue& argument, const Change& change) {
  if (argument.isTensor()) return change(argument.toTensor());
  if (argument.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : argument.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (argument.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      changed.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    }
    return changed;
  }
  if (argument.isDevice()) return c10::Device(c10::kCPU);
  return argument;
}

// A call that has been taken apart: no tensor of it is held.
struct Call {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // without tensors
  std::vector<TensorRef> tensors;      // in the order of the arguments
  std::optional<at::PhiloxCudaState> random;
};

Call take_apart(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);

template <typename Make>
torch::jit::Stack stack_of(const Call& call, const Make& make) {
  torch::jit::Stack stack;
  std::size_t next = 0;
  for (const auto& argument : call.arguments) {
    stack.push_back(
        change_tensors(argument, [&](const at::Tensor&) { return make(call.tensors.at(next++)); }));
  }
  return stack;
}

// Whether the operator takes random numbers.
bool draws(const c10::FunctionSchema& schema);

// Calls the operator; the stack has its arguments on the CPU, and then its results.
void compute(const Call& call, torch::jit::Stack& stack);

}  // namespace lockstep::simulated
