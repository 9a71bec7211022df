// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <torch/nn/module.h>

#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_optimizers.h"
#include "graphs/graph_trace.h"
#include "graphs/revocable_graph.h"

namespace lockstep::graphs {

// The memory and layout of a tensor at the capture, which the graph reads and writes. Keeps the memory alive.
class TensorLocation {
 public:
  explicit TensorLocation(const at::Tensor& tensor);
  // Whether `now` has the same memory, layout and dtype, or both are undefined.
  bool matches(const at::Tensor& now) const;

 private:
  std::optional<c10::Storage> storage_;
  const void* data_ = nullptr;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  at::ScalarType dtype_ = at::kFloat;
  bool requires_grad_ = false;
};

// The submodules, parameters and buffers of some modules, each once.
struct ModuleParts {
  explicit ModuleParts(const std::vector<ModuleRef>& roots);
  std::vector<bool> modes() const;  // training or evaluation, per module

  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

// The gradients of some parameters before and after a capture.
class CapturedGradients {
 public:
  explicit CapturedGradients(std::vector<at::Tensor> parameters);
  // Called after the capture: records the gradients that the step produced.
  void record_results();
  // Whether a replay with the current gradients is equivalent to the step. Gradients that the step replaces
  // do not matter.
  bool still_match() const;
  // Sets the parameters' gradients to those that the graph writes.
  void assign_results() const;
  // Restores the gradients before the capture.
  void restore() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> before_;
  std::vector<TensorLocation> before_locations_;
  std::vector<bool> is_input_;
  std::vector<at::Tensor> after_;
};

// Host state that a graph freezes.
struct HostState {
  HyperParameters hyper_parameters;
  std::vector<bool> modes;
  bool operator==(const HostState& other) const = default;
};

// A captured step, with the memory that it reads and writes.
class CapturedStep {
 public:
  // Captures the step. Its trace must equal `eager`, the trace of the last eager run. Throws Error when the
  // step cannot be captured; gradients and optimizers are then unchanged.
  CapturedStep(c10::Device device, const GraphedStep::Step& step, const GraphedStep::Tensors& inputs,
               const GraphedStepOptions& options, const ModuleParts& parts, HostState host,
               const OperatorTrace& eager);

  // Whether a replay is equivalent to the step now.
  bool is_valid(const HostState& host, const ModuleParts& parts, const Optimizers& optimizers) const;
  GraphedStep::Tensors replay(const GraphedStep::Tensors& inputs, bool copy_outputs);

 private:
  void record(const GraphedStep::Step& step, const GraphedStepOptions& options, OperatorTrace& trace);
  void check(const OperatorTrace& eager, const OperatorTrace& trace, const Optimizers& optimizers) const;
  void record_step_counts(const Optimizers& optimizers);
  void roll_back(const Optimizers& optimizers) const;

  c10::Device device_;
  HostState host_;
  GraphedStep::Tensors inputs_;
  GraphedStep::Tensors outputs_;
  std::vector<at::Tensor> optimized_;    // the optimizers' parameters
  std::vector<TensorLocation> tensors_;  // parameters and buffers
  std::vector<TensorLocation> states_;   // optimizer state
  std::vector<ParameterState> states_before_;
  std::vector<std::pair<ParameterState, std::int64_t>> step_counts_;  // increment per step
  CapturedGradients gradients_;
  std::shared_ptr<RevocableGraph> graph_;
  std::vector<std::function<void()>> replay_actions_;
  bool replayed_ = false;
};

// Detaches the outputs from autograd. Throws Error when one is on another device.
GraphedStep::Tensors detached(const GraphedStep::Tensors& outputs, c10::Device device);
// Throws Error when a tensor's version differs from `versions`, that is, when the step wrote to it.
void check_not_modified(const GraphedStep::Tensors& inputs, const std::vector<std::uint32_t>& versions);
std::vector<std::uint32_t> versions_of(const GraphedStep::Tensors& inputs);

}  // namespace lockstep::graphs
