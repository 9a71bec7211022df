// SPDX-License-Identifier: BSD-3-Clause
#include "operator_call.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include "simulated.h"

namespace lockstep::simulated {
namespace {

using torch::jit::Stack;

std::uint64_t number_at(const std::int64_t* address) {
  return static_cast<std::uint64_t>(*static_cast<const std::int64_t*>(lockstep_simulated_bytes(address)));
}

at::Generator generator_of(const at::PhiloxCudaState& state) {
  const auto seed = state.captured_ ? number_at(state.seed_.ptr) : state.seed_.val;
  const auto offset =
      state.captured_ ? number_at(state.offset_.ptr) + state.offset_intragraph_ : state.offset_.val;
  return at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15 + offset + 1);
}

// Which the CPU's takes from the default generator.
void native_dropout(Stack& stack, const at::Generator& generator) {
  const auto input = stack.at(0).toTensor();
  const double p = stack.at(1).toDouble();
  const auto mask = at::empty(input.sizes(), input.options().dtype(at::kBool)).bernoulli_(1 - p, generator);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  const auto output = input.mul(mask).mul_(scale);
  stack = {output, mask};
}

}  // namespace

TensorRef ref_to(const at::Tensor& tensor) {
  TensorRef ref;
  ref.defined = tensor.defined();
  if (!ref.defined) return ref;
  ref.type = tensor.scalar_type();
  ref.sizes = tensor.sizes().vec();
  ref.strides = tensor.strides().vec();
  ref.on_device = tensor.is_cuda();
  if (ref.on_device) {
    TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "simulated GPU: conjugate views are not simulated");
    ref.data = tensor.const_data_ptr();
  } else {
    ref.value = tensor.detach().clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      ref.value.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
  }
  return ref;
}

at::Tensor on_cpu(const TensorRef& ref) {
  if (!ref.defined) return {};
  if (!ref.on_device) return ref.value;
  return at::from_blob(lockstep_simulated_bytes(ref.data), ref.sizes, ref.strides,
                       at::TensorOptions(ref.type));
}

at::Tensor zeros_like(const TensorRef& ref) {
  if (!ref.defined) return {};
  if (!ref.on_device) return ref.value;
  return at::empty_strided(ref.sizes, ref.strides, at::TensorOptions(ref.type)).zero_();
}

Call take_apart(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  Call call{op, {}, {}, {}};
  for (const auto& argument : arguments) {
    call.arguments.push_back(change_tensors(argument, [&](const at::Tensor& tensor) {
      call.tensors.push_back(ref_to(tensor));
      return at::Tensor();
    }));
  }
  return call;
}

bool draws(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::native_dropout") return true;
  return std::ranges::any_of(schema.arguments(),
                             [](const auto& argument) { return argument.name() == "generator"; });
}

void compute(const Call& call, Stack& stack) {
  const at::AutoDispatchBelowAutograd below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  at::Generator generator;
  if (call.random) {
    generator = generator_of(*call.random);
    if (call.op.schema().name() == "aten::native_dropout") return native_dropout(stack, generator);
    const auto& arguments = call.op.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == "generator") stack[i] = generator;
    }
  }
  call.op.callBoxed(stack);
}

}  // namespace lockstep::simulated
