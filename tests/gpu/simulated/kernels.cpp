// SPDX-License-Identifier: BSD-3-Clause
// LibTorch's kernels for CUDA, replaced by those for the CPU on the simulated device's memory. They run when
// the stream comes to them, or in each replay of a graph, and know memory by its address only, as a kernel
// does.
#include <set>

#include <ATen/Context.h>
#include <ATen/DeviceGuard.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "operator_call.h"
#include "simulated.h"
#include "special_kernels.h"

namespace lockstep::simulated {
namespace {

using torch::jit::Stack;

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// What a call gives depends on values: the host has to wait for them.
bool needs_values(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  static const std::set<std::string> names{"aten::nonzero",
                                           "aten::masked_select",
                                           "aten::_unique2",
                                           "aten::unique_dim",
                                           "aten::unique_consecutive",
                                           "aten::unique_dim_consecutive",
                                           "aten::bincount",
                                           "aten::equal",
                                           "aten::_unique"};
  if (names.contains(schema.name())) return true;
  if (schema.name() == "aten::repeat_interleave") return true;
  const bool gives_others = std::ranges::any_of(schema.returns(), [](const auto& returned) {
    return returned.type()->kind() != c10::TypeKind::TensorType &&
           returned.type()->kind() != c10::TypeKind::ListType;
  });
  if (gives_others) return true;
  if (!schema.name().starts_with("aten::index") && schema.name() != "aten::_index_put_impl_") return false;
  for (const auto& argument : arguments) {
    if (!argument.isOptionalTensorList()) continue;
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      if (tensor && tensor->defined() &&
          (tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte)) {
        return true;
      }
    }
  }
  return false;
}

at::Tensor on_device(const at::Tensor& result, const c10::Device& device) {
  if (!result.defined()) return {};
  return at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
}

// One call of an operator, from the host's side.
class Issue {
 public:
  explicit Issue(const std::vector<c10::IValue>& arguments) : device_(device_of(arguments)) {}

  void run(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, Stack& stack) {
    check_devices(op.schema(), arguments);
    const c10::OptionalDeviceGuard guard(device_);
    if (needs_values(op.schema(), arguments)) {
      C10_CUDA_CHECK(cudaStreamSynchronize(at::cuda::getCurrentCUDAStream()));
      return run_now(op, arguments, stack);
    }
    issue_later(op, arguments, stack);
  }

 private:
  static c10::Device device_of(const std::vector<c10::IValue>& arguments) {
    for (const auto& argument : arguments) {
      for (const auto& tensor : tensors_in(argument)) {
        if (tensor.defined() && tensor.is_cuda()) return tensor.device();
      }
      if (argument.isDevice() && argument.toDevice().is_cuda() && argument.toDevice().has_index()) {
        return argument.toDevice();
      }
    }
    return {c10::kCUDA, c10::cuda::current_device()};
  }

  // The same check as LibTorch's.
  void check_devices(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) const {
    for (const auto& argument : arguments) {
      for (const auto& tensor : tensors_in(argument)) {
        TORCH_CHECK(!tensor.defined() || tensor.device() == device_ || (tensor.is_cpu() && tensor.dim() == 0),
                    "Expected all tensors to be on the same device, but one of ", schema.name(), " is on ",
                    tensor.device());
      }
    }
  }

  void draw(Call& call, const std::vector<c10::IValue>& arguments) {
    std::optional<at::Generator> given;
    for (const auto& argument : arguments) {
      if (argument.isGenerator()) given = argument.toGenerator();
    }
    auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
        given, at::cuda::detail::getDefaultCUDAGenerator(device_.index()));
    const std::lock_guard lock(generator->mutex_);
    call.random = generator->philox_cuda_state(4);
  }

  // The argument that is also a result.
  static std::optional<std::size_t> argument_of(const c10::FunctionSchema& schema,
                                                const c10::Argument& result) {
    if (result.alias_info() == nullptr) return std::nullopt;
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return i;
    }
    return std::nullopt;
  }

  // Results of `shapes`, which `out` tensors get too.
  std::vector<c10::IValue> make_results(const c10::FunctionSchema& schema,
                                        const std::vector<c10::IValue>& arguments, const Stack& shapes) {
    std::vector<c10::IValue> results;
    for (std::size_t i = 0; i < schema.returns().size(); ++i) {
      if (const auto argument = argument_of(schema, schema.returns()[i])) {
        const auto& given = arguments[*argument];
        if (!shapes.empty() && given.isTensor() && schema.arguments()[*argument].is_out()) {
          fit(given.toTensor(), shapes.at(i).toTensor());
        }
        results.push_back(given);
      } else {
        results.push_back(change_tensors(
            shapes.at(i), [&](const at::Tensor& tensor) { return on_device(tensor, device_); }));
      }
    }
    return results;
  }

  static void fit(const at::Tensor& out, const at::Tensor& shape) {
    if (out.sizes() == shape.sizes() && out.strides() == shape.strides()) return;
    out.resize_(shape.sizes());
    out.as_strided_(shape.sizes(), shape.strides());
  }

  void issue_later(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, Stack& stack) {
    const auto& schema = op.schema();
    const bool asks_shapes =
        std::ranges::any_of(schema.returns(), [](const auto& returned) { return !is_write(returned); }) ||
        std::ranges::any_of(schema.arguments(), [](const auto& argument) { return argument.is_out(); });
    Stack shapes;
    if (asks_shapes) {
      auto trial = take_apart(op, arguments);
      if (draws(schema)) trial.random = at::PhiloxCudaState(1, 0);
      shapes = stack_of(trial, zeros_like);
      compute(trial, shapes);
    }
    auto results = make_results(schema, arguments, shapes);
    auto call = take_apart(op, arguments);
    if (draws(schema)) draw(call, arguments);
    // Allocates the results that are not arguments.
    std::vector<std::vector<TensorRef>> places;
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::vector<TensorRef> ref;
      if (!is_write(schema.returns()[i])) {
        for (const auto& tensor : tensors_in(results[i])) ref.push_back(ref_to(tensor));
      }
      places.push_back(std::move(ref));
    }
    C10_CUDA_CHECK(lockstep_simulated_launch(
        at::cuda::getCurrentCUDAStream(),
        [call = std::move(call), places = std::move(places)] { execute(call, places); }));
    stack.insert(stack.end(), results.begin(), results.end());
  }

  static void execute(const Call& call, const std::vector<std::vector<TensorRef>>& places) {
    at::set_num_threads(1);
    auto stack = stack_of(call, on_cpu);
    compute(call, stack);
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].empty()) continue;
      const auto made = tensors_in(stack.at(i));
      for (std::size_t j = 0; j < places[i].size(); ++j) {
        if (made.at(j).defined()) on_cpu(places[i][j]).copy_(made[j]);
      }
    }
  }

  // The stream is idle, and its memory can be read.
  void run_now(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, Stack& stack) {
    const auto call = take_apart(op, arguments);
    auto made = stack_of(call, on_cpu);
    compute(call, made);
    for (std::size_t i = 0; i < op.schema().returns().size(); ++i) {
      if (const auto argument = argument_of(op.schema(), op.schema().returns()[i])) {
        const auto& given = arguments[*argument];
        fit(given.toTensor(), made.at(i).toTensor());
        on_cpu(ref_to(given.toTensor())).copy_(made.at(i).toTensor());
        stack.push_back(given);
        continue;
      }
      stack.push_back(change_tensors(made.at(i), [&](const at::Tensor& tensor) {
        const auto moved = on_device(tensor, device_);
        if (moved.defined()) on_cpu(ref_to(moved)).copy_(tensor);
        return moved;
      }));
    }
  }

  c10::Device device_;
};

class SimulatedKernel : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    // GraphedStep must observe the operators of a step, not those of the simulation.
    const at::DisableRecordFunctionGuard unobserved;
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    const std::vector<c10::IValue> arguments(first, stack->end());
    stack->erase(first, stack->end());
    Issue(arguments).run(op, arguments, *stack);
  }
};

// What only allocates, looks at metadata, or is a copy by the runtime works as it is.
bool works_as_it_is(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names{"aten::empty",
                                           "aten::empty_strided",
                                           "aten::resize_",
                                           "aten::resize_as_",
                                           "aten::set_",
                                           "aten::record_stream",
                                           "aten::_local_scalar_dense",
                                           "aten::is_set_to",
                                           "aten::_pin_memory",
                                           "aten::is_pinned",
                                           "aten::copy_",
                                           "aten::_efficientzerotensor",
                                           "aten::_fused_sdp_choice",
                                           "aten::as_strided_",
                                           "aten::_resize_output_"};
  if (names.contains(schema.name())) return true;
  return std::ranges::any_of(schema.returns(), [](const auto& returned) {
    return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
  });
}

class Silent : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

torch::CppFunction simulated() {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SimulatedKernel>());
}

bool replace_kernels() {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&silent);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA))
      continue;
    if (works_as_it_is(op->schema())) continue;
    const auto text = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(text.c_str(), simulated());
  }
  for (const auto* name : {"aten::convolution", "aten::convolution_backward"})
    library.impl(name, simulated());
  add_special_kernels();
  // Libraries with their own kernels, which cannot run.
  at::globalContext().setUserEnabledCuDNN(false);
  at::globalContext().setSDPUseFlash(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseCuDNN(false);
  return true;
}

const bool replaced = replace_kernels();

}  // namespace
}  // namespace lockstep::simulated
