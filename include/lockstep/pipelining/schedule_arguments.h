// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <lockstep/device/pytree.h>

// The arguments of pipeline schedules, by position and by name.
namespace lockstep::pipelining {

/// A list of tensors: inputs, outputs, targets or losses.
using Tensors = std::vector<at::Tensor>;

/// Options of all schedules.
struct PipelineScheduleOptions {
  /// Whether gradients are divided by the number of micro-batches, which is right for a loss that averages
  /// over a batch.
  bool scale_grads = true;
  /// The dimension in which the tensors of arguments, target and outputs are split. PyTorch:
  /// `args_chunk_spec`, `output_merge_spec`.
  std::int64_t chunk_dim = 0;
  /// Whether step() and eval() return the outputs. PyTorch: an argument of `step()`.
  bool return_outputs = true;
};

/// The loss of a micro-batch from the output of the last stage and the target: a tensor with one element.
/// AnyPyTree converts, so `[](const at::Tensor& output, const at::Tensor& target) { ... }` is one as well, and so are
/// LibTorch's modules and functions: `torch::nn::CrossEntropyLoss()`, `torch::nn::functional::mse_loss`.
class LossFunction : public std::function<at::Tensor(const AnyPyTree& output, const AnyPyTree& target)> {
 public:
  /// Of one value for all outputs and one for the target.
  using Function = std::function<at::Tensor(const AnyPyTree& output, const AnyPyTree& target)>;

  using Function::Function;
  LossFunction() = default;
  LossFunction(Function loss) : Function(std::move(loss)) {}  // NOLINT: implicit by design
  /// A loss such as `torch::mse_loss`, whose third argument is a reduction: it is called with at::Reduction::Mean. Give
  /// a function of your own whose third argument means something else as a lambda of two arguments.
  LossFunction(at::Tensor (*loss)(const at::Tensor&, const at::Tensor&,
                                  std::int64_t reduction))  // NOLINT: implicit by design
      : Function([loss](const at::Tensor& output, const at::Tensor& target) {
          return loss(output, target, at::Reduction::Mean);
        }) {}
  /// A loss of `torch::nn::functional`, with its default options.
  template <typename Options>
    requires requires(std::remove_cvref_t<Options> options) { options.reduction(); }
  LossFunction(at::Tensor (*loss)(const at::Tensor&, const at::Tensor&,
                                  Options))  // NOLINT: implicit by design
      : Function([loss](const at::Tensor& output, const at::Tensor& target) {
          return loss(output, target, std::remove_cvref_t<Options>());
        }) {}
};

/// The arguments of a schedule's class by name: `Schedule1F1B(stage, {.n_microbatches = 4, .loss_fn = loss})`. The
/// last three are those of PipelineScheduleOptions.
struct PipelineScheduleArguments {
  int n_microbatches = 0;      ///< 1 or more
  LossFunction loss_fn = {};   ///< on the rank of the last stage
  bool scale_grads = true;     ///< whether gradients are divided by n_microbatches
  std::int64_t chunk_dim = 0;  ///< the dimension in which tensors are split
  bool return_outputs = true;  ///< whether step() and eval() return the outputs
};

/// The last arguments of a schedule's class by name, behind the number of micro-batches.
struct PipelineLossArguments {
  LossFunction loss_fn = {};   ///< on the rank of the last stage
  bool scale_grads = true;     ///< whether gradients are divided by n_microbatches
  std::int64_t chunk_dim = 0;  ///< the dimension in which tensors are split
  bool return_outputs = true;  ///< whether step() and eval() return the outputs
};

/// The list that gets the loss of each micro-batch: a vector, or a pointer to one; nullptr: none.
class LossList {
 public:
  LossList() = default;
  LossList(std::nullptr_t) {}                    // NOLINT: implicit by design
  LossList(Tensors* losses) : list_(losses) {}   // NOLINT: implicit by design
  LossList(Tensors& losses) : list_(&losses) {}  // NOLINT: implicit by design
  operator Tensors*() const { return list_; }    // NOLINT: implicit by design

 private:
  Tensors* list_ = nullptr;
};

/// The arguments of PipelineSchedule::step() and eval() by their names, e.g. `{.target = y, .losses = losses}`.
struct StepArguments {
  /// Makes an initializer without names invalid, which would be the args of step() alone.
  struct Named {
    Named() = default;
  };
  Named named = {};           ///< leave it out
  AnyPyTree args = {};        ///< the inputs of stage 0
  AnyPyTree target = {};      ///< what the loss compares the outputs with
  LossList losses = nullptr;  ///< gets the loss of each micro-batch
};

}  // namespace lockstep::pipelining
