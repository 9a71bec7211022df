// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/device/pytree.h>

namespace lockstep {

/// Options of checkpoint() under PyTorch's names.
struct ActivationCheckpointOptions {
  /// True: backward runs a nested backward pass, which adds to the parameters' gradients each time. At least
  /// one input must require a gradient. With DistributedDataParallel, parameters used by several such
  /// functions then need static_graph. False: gradients pass through the outer graph, as without
  /// checkpoint().
  bool use_reentrant = false;
  /// Whether random numbers (dropout) are the same in both runs.
  bool preserve_rng_state = true;
};

namespace ddp {

/// Maps the tensors of the arguments to those of the result, in the first run and in that of backward.
using Recomputed =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs, bool is_first)>;

/// checkpoint() of a function of tensors.
std::vector<at::Tensor> checkpoint_tensors(Recomputed function, const std::vector<at::Tensor>& inputs,
                                           const ActivationCheckpointOptions& options);

/// Calls a module holder's forward(), or the function itself.
template <typename Function, typename... Arguments>
decltype(auto) call(Function& function, Arguments&... arguments) {
  if constexpr (requires { function->forward(arguments...); }) {
    return function->forward(arguments...);
  } else {
    return function(arguments...);
  }
}

/// Appends the tensors of a PyTree.
template <typename T>
void append_tensors(T& value, std::vector<at::Tensor>& tensors) {
  if constexpr (PyTree<T>) visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
}

/// Replaces the tensors of a PyTree by those from `next` on.
template <typename T>
void put_tensors(T& value, const std::vector<at::Tensor>& tensors, std::size_t& next) {
  if constexpr (PyTree<T>) visit_tensors(value, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

/// Detaches the tensors of a PyTree.
template <typename T>
void detach_tensors(T& value) {
  if constexpr (PyTree<T>) visit_tensors(value, [](at::Tensor& tensor) { tensor = tensor.detach(); });
}

}  // namespace ddp

/// Calls `function` (a module holder or any callable) without keeping the tensors that backward needs;
/// backward calls it again. Saves memory at the cost of about a third more time. Tensors in arguments and
/// result take part in autograd if TensorVisitor knows their type; other arguments are copied.
///
///     x = lockstep::checkpoint(block, x, mask);
///     x = lockstep::checkpoint({.use_reentrant = true}, [&](const at::Tensor& h) { return block->forward(h, mask); }, x);
///
/// `function` must compute the same both times. Its side effects, e.g. on BatchNorm's statistics, happen
/// twice, as in PyTorch. Objects that it refers to must live until backward. Throws ArgumentError if
/// use_reentrant is set and no input requires a gradient. PyTorch: `torch.utils.checkpoint.checkpoint`.
template <typename Function, typename... Arguments>
auto checkpoint(const ActivationCheckpointOptions& options, Function function, Arguments... arguments) {
  using Result = std::remove_cvref_t<decltype(ddp::call(function, arguments...))>;
  static_assert(PyTree<Result>,
                "checkpoint: the result's tensors cannot be found; specialize lockstep::TensorVisitor");
  struct Frame {
    Function function;
    std::tuple<Arguments...> arguments;  // their tensors are put in anew for each run
    std::optional<Result> result;        // of the first run
  };
  std::vector<at::Tensor> inputs;
  (ddp::append_tensors(arguments, inputs), ...);
  (ddp::detach_tensors(arguments), ...);
  auto frame = std::make_shared<Frame>(Frame{std::move(function), {std::move(arguments)...}, std::nullopt});
  const auto run = [frame](const std::vector<at::Tensor>& tensors, bool is_first) {
    auto own = frame->arguments;
    std::size_t next = 0;
    std::apply([&](auto&... each) { (ddp::put_tensors(each, tensors, next), ...); }, own);
    Result result = std::apply([&](auto&... each) { return ddp::call(frame->function, each...); }, own);
    std::vector<at::Tensor> outputs;
    ddp::append_tensors(result, outputs);
    if (is_first) frame->result.emplace(std::move(result));
    return outputs;
  };
  const auto outputs = ddp::checkpoint_tensors(run, inputs, options);
  Result result = std::move(*frame->result);
  frame->result.reset();
  std::size_t next = 0;
  ddp::put_tensors(result, outputs, next);
  return result;
}

template <typename Function, typename... Arguments>
  requires(!std::same_as<std::remove_cvref_t<Function>, ActivationCheckpointOptions>)
auto checkpoint(Function function, Arguments... arguments) {
  return checkpoint(ActivationCheckpointOptions{}, std::move(function), std::move(arguments)...);
}

/// For one tensor, with the options where PyTorch has them: `checkpoint(block, x, {.use_reentrant = false})`.
template <typename Function>
auto checkpoint(Function function, const at::Tensor& input, const ActivationCheckpointOptions& options) {
  return checkpoint(options, std::move(function), input);
}

}  // namespace lockstep
