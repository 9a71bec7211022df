// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/device/graph_device.h>

namespace lockstep {

/// Options of GraphedStep.
struct GraphedStepOptions {
  /// The optimizers that the step calls. Their hyper-parameters and state are compared before each replay.
  /// Those of lockstep::optim, SGD, RMSprop, and Adagrad without lr_decay; others are refused.
  std::vector<torch::optim::Optimizer*> optimizers = {};
  /// The modules that the step calls. Their modes, parameters and buffers are compared before each replay.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
  /// Calls that run eagerly before a step is captured, 2 or more: the last two are compared. PyTorch:
  /// `num_warmup_iters`.
  int warmup = 3;
  /// Graphs that are kept, one for each kind of inputs; the one longest unused makes room.
  std::size_t max_graphs = 8;
  /// Generators of the device that the step draws from besides its default one. PyTorch:
  /// `CUDAGraph.register_generator_state`.
  std::vector<at::Generator> generators = {};
  /// True: outputs are copies that stay as they are. False: each call overwrites those of the one before.
  bool copy_outputs = true;
  /// False: every call runs the step as it is; the way to run the same program on a CPU.
  bool enabled = true;
  /// How graphs are recorded. Default: make_graph_device().
  std::shared_ptr<GraphDevice> graph_device = {};
};

/// What a GraphedStep's calls have been.
struct GraphedStepStats {
  std::int64_t eager = 0;
  std::int64_t captures = 0;
  std::int64_t replays = 0;
};

/// A training step, or any work on a GPU, that is captured in a graph once it has run a few times, and
/// replayed from then on: the host queues it all at once. PyTorch: `torch.cuda.CUDAGraph`,
/// `torch.cuda.graph`.
///
///     lockstep::GraphedStep step(
///         context.device(),
///         [&](const std::vector<torch::Tensor>& batch) -> std::vector<torch::Tensor> {
///           optimizer.zero_grad();
///           auto loss = F::cross_entropy(ddp->forward(batch[0]), batch[1]);
///           loss.backward();
///           optimizer.step();
///           return {loss};
///         },
///         {.optimizers = {&optimizer}, .modules = {ddp.ptr()}});
///     for (auto& [images, labels] : loader) loss = step({images, labels})[0];
///
/// Every call does the step once, in whichever way: the first `warmup` calls for a kind of inputs (shapes,
/// strides, dtypes) run it eagerly on a stream of their own, the next one captures and replays it. A changed
/// hyper-parameter, mode, parameter or gradient makes a call eager and the next one capture anew. Outputs are
/// detached.
///
/// What a graph would silently freeze is an Error that names it: operators that wait for the device, tensors
/// of the CPU, numbers or operators that differ between the last eager run and the captured one, inputs that
/// are written to, optimizers that count on the host. What cannot be seen is listed in docs/graphs.md. After
/// an error gradients and optimizers are as before the capture.
///
/// One thread at a time. Other threads may have GraphedSteps of their own, which capture in turns. Optimizers
/// must outlive it.
class GraphedStep {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Step = std::function<Tensors(const Tensors&)>;

  /// Throws ArgumentError for options that are refused, and, when enabled, where `device` has no graphs.
  GraphedStep(c10::Device device, Step step, GraphedStepOptions options = {});
  ~GraphedStep();
  GraphedStep(GraphedStep&& other) noexcept;
  GraphedStep& operator=(GraphedStep&& other) noexcept;

  /// Inputs are on the device, dense, and require no gradients.
  Tensors operator()(const Tensors& inputs);

  /// Forgets all graphs: the next call warms up again.
  void reset();
  const GraphedStepStats& stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
