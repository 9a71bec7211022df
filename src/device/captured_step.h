// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <lockstep/device/graphed_step.h>
#include <lockstep/device/revocable_graph.h>

#include "device/graph_optimizers.h"
#include "device/graph_places.h"
#include "device/graph_trace.h"

namespace lockstep::graphs {

// What a graph cannot look at when it is replayed.
struct HostState {
  HyperParameters hyper_parameters;
  std::vector<bool> modes;
  bool operator==(const HostState& other) const = default;
};

// A step as a graph, with the memory that it reads and writes.
class CapturedStep {
 public:
  // Captures. `eager`: the trace of the last run, which this one has to equal. Throws Error, gradients and
  // optimizers being as before, when the step cannot be captured.
  CapturedStep(c10::Device device, const GraphedStep::Step& step, const GraphedStep::Tensors& inputs,
               const GraphedStepOptions& options, const ModuleParts& parts, HostState host,
               const OperatorTrace& eager);

  // Whether a replay would do now what the step does.
  bool fits(const HostState& host, const ModuleParts& parts, const Optimizers& optimizers) const;
  GraphedStep::Tensors replay(const GraphedStep::Tensors& inputs, bool copy_outputs);

 private:
  void record(const GraphedStep::Step& step, const GraphedStepOptions& options, OperatorTrace& trace);
  void check(const OperatorTrace& eager, const OperatorTrace& trace, const Optimizers& optimizers) const;
  void count_steps(const Optimizers& optimizers);
  void undo(const Optimizers& optimizers) const;

  c10::Device device_;
  HostState host_;
  GraphedStep::Tensors inputs_;
  GraphedStep::Tensors outputs_;
  std::vector<at::Tensor> stepped_;  // the optimizers' parameters
  std::vector<Place> places_;        // of parameters and buffers
  std::vector<Place> states_;        // of the optimizers
  std::vector<ParameterState> states_before_;
  std::vector<std::pair<ParameterState, std::int64_t>> counted_;  // by how much a step moves each count
  CapturedGradients gradients_;
  std::shared_ptr<RevocableGraph> graph_;
  std::vector<std::function<void()>> replay_actions_;
  bool replayed_ = false;
};

// The parameters of both, each once, then the buffers: what a captured step reads where it lay.
std::vector<at::Tensor> kept_tensors(const ModuleParts& parts, const Optimizers& optimizers);
// Outputs as they are returned: without a graph of autograd. Throws Error when one is not on the device.
GraphedStep::Tensors detached(const GraphedStep::Tensors& outputs, c10::Device device);
// Throws Error unless each tensor's version is as given, for it has been written to otherwise.
void check_unwritten(const GraphedStep::Tensors& inputs, const std::vector<std::uint32_t>& versions);
std::vector<std::uint32_t> versions_of(const GraphedStep::Tensors& inputs);

}  // namespace lockstep::graphs
