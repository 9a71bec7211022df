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
#include <torch/optim/optimizer.h>

#include <lockstep/device/module_ref.h>

namespace lockstep {

/// Recorded work of a device that can be replayed. PyTorch: `torch.cuda.CUDAGraph`.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Queues the work on the current stream.
  virtual void replay() = 0;
};

/// Records the work of a device. GraphedStep uses CUDA's; derive from it for other devices.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;

  /// Runs `work` with a side stream as the current stream. The side stream waits for the caller's stream
  /// before, and the caller's stream for the side stream afterwards.
  virtual void run_on_side_stream(const std::function<void()>& work) = 0;

  /// Records what `work` queues on the side stream, without running it. All graphs of this object share a
  /// private memory pool. `generators`: generators other than the device's default one that `work` uses.
  /// Discards the recording and throws when `work` throws or cannot be recorded.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                              const std::vector<at::Generator>& generators) = 0;
};

/// The GraphDevice of a GPU. Throws ArgumentError for the CPU, for devices without graphs, and in builds
/// without CUDA.
std::shared_ptr<GraphDevice> make_graph_device(c10::Device device);

/// Options of GraphedStep.
struct GraphedStepOptions {
  /// The optimizers that the step calls: those of lockstep::optim, SGD, RMSprop, and Adagrad without
  /// lr_decay. Their hyper-parameters and state are compared before each replay.
  std::vector<torch::optim::Optimizer*> optimizers = {};
  /// The modules that the step calls. Their submodules, modes, parameters and buffers are compared before
  /// each replay. Each is in a shared_ptr or a holder, and lives as long as the GraphedStep.
  std::vector<ModuleRef> modules = {};
  /// Number of eager calls before a capture, 2 or more; the last two are compared. PyTorch:
  /// `num_warmup_iters`.
  int warmup = 3;
  /// Number of graphs to keep, one per input signature; the least recently used one is dropped.
  std::size_t max_graphs = 8;
  /// Generators of the device that the step uses besides the default one. PyTorch:
  /// `CUDAGraph.register_generator_state`.
  std::vector<at::Generator> generators = {};
  /// True: outputs are copies. False: each call overwrites the outputs of the call before.
  bool copy_outputs = true;
  /// False: every call runs the step eagerly, for example on a CPU.
  bool enabled = true;
  /// Records graphs. Default: make_graph_device().
  std::shared_ptr<GraphDevice> graph_device = {};
};

/// Counts of the calls of a GraphedStep.
struct GraphedStepStats {
  std::int64_t eager = 0;     ///< calls that ran without a graph
  std::int64_t captures = 0;  ///< graphs that were captured
  std::int64_t replays = 0;   ///< calls that replayed a graph
};

/// Captures a training step, or other work on a GPU, in a graph after a few calls and replays it afterwards,
/// which removes the host's cost per kernel. PyTorch: `torch.cuda.CUDAGraph`, `torch.cuda.graph`.
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
///         {.optimizers = {&optimizer}, .modules = {ddp}});
///     for (auto& [images, labels] : loader) loss = step({images, labels})[0];
///
/// Every call runs the step once. For each input signature (shapes, strides, dtypes) the first `warmup` calls
/// run eagerly on a side stream, and the next call captures and replays. After a change of a hyper-parameter,
/// mode, parameter or gradient one call runs eagerly, and the next one captures again. Outputs are detached.
///
/// Throws an Error that names what a graph would freeze: operators that synchronize with the device, CPU
/// tensors, numbers or operators that differ between the last eager run and the captured one, inputs that the
/// step writes to, and optimizers that keep step counts on the host. docs/graphs.md lists what cannot be
/// detected. After an error, gradients and optimizers are as before the capture.
///
/// Not thread-safe. Several threads may have a GraphedStep each; their captures run one at a time. Optimizers
/// must outlive the GraphedStep.
class GraphedStep {
 public:
  /// Inputs or results of a step.
  using Tensors = std::vector<at::Tensor>;
  /// A training step: from the inputs to the results.
  using Step = std::function<Tensors(const Tensors&)>;

  /// Throws ArgumentError for invalid options and, when enabled, for a device without graphs.
  GraphedStep(c10::Device device, Step step, const GraphedStepOptions& options = {});
  ~GraphedStep();
  GraphedStep(GraphedStep&& other) noexcept;
  GraphedStep& operator=(GraphedStep&& other) noexcept;

  /// Runs the step. Inputs must be dense tensors on the device that do not require gradients.
  Tensors operator()(const Tensors& inputs);

  /// Drops all graphs; the next call warms up again.
  void reset();
  /// How many calls ran, were captured and were replayed.
  const GraphedStepStats& stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
