// SPDX-License-Identifier: BSD-3-Clause
#include "graphs/captured_step.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "graphs/graph_phase.h"

namespace lockstep::graphs {
namespace {

using Tensors = GraphedStep::Tensors;

std::vector<at::Tensor> concatenated(std::vector<at::Tensor> first, const std::vector<at::Tensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<at::Tensor> trained_tensors(const ModuleParts& parts, const Optimizers& optimizers) {
  return without_duplicates(concatenated(parts.parameters, parameters_of(optimizers)));
}

std::vector<at::Tensor> state_tensors(const Optimizers& optimizers) {
  std::vector<at::Tensor> tensors;
  for (const auto& state : states_of(optimizers)) {
    tensors.insert(tensors.end(), state.tensors.begin(), state.tensors.end());
  }
  return tensors;
}

// Calls of the capture fail with LibTorch's errors, whose cause the trace may know.
[[noreturn]] void rethrow_as_error(const OperatorTrace& trace) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto why = trace.error().empty() ? "" : trace.error() + "; ";
    std::throw_with_nested(
        Error(fmt::format("GraphedStep: the step failed during capture: {}{}", why, error.what())));
  }
}

Tensors cloned(const Tensors& tensors) {
  const c10::NoGradGuard no_grad;
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace

std::vector<at::Tensor> module_and_optimizer_tensors(const ModuleParts& parts, const Optimizers& optimizers) {
  return concatenated(trained_tensors(parts, optimizers), parts.buffers);
}

Tensors detached(const Tensors& outputs, c10::Device device) {
  Tensors detached_outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].device().type() != device.type()) {
      throw Error(fmt::format(
          "GraphedStep: output {} of the step is on {}, which requires a synchronization; return it on {}", i,
          outputs[i].device().str(), device.str()));
    }
    detached_outputs.push_back(outputs[i].defined() ? outputs[i].detach() : outputs[i]);
  }
  return detached_outputs;
}

std::vector<std::uint32_t> versions_of(const Tensors& inputs) {
  std::vector<std::uint32_t> versions;
  for (const auto& input : inputs) {
    versions.push_back(input.is_inference() ? 0 : static_cast<std::uint32_t>(input._version()));
  }
  return versions;
}

void check_not_modified(const Tensors& inputs, const std::vector<std::uint32_t>& versions) {
  const auto now = versions_of(inputs);
  const auto [written, before] = std::ranges::mismatch(now, versions);
  if (written == now.end()) return;
  throw Error(
      fmt::format("GraphedStep: the step writes to its input {}, which a graph copies; write to a clone",
                  written - now.begin()));
}

CapturedStep::CapturedStep(c10::Device device, const GraphedStep::Step& step, const Tensors& inputs,
                           const GraphedStepOptions& options, const ModuleParts& parts, HostState host,
                           const OperatorTrace& eager)
    : device_(device),
      host_(std::move(host)),
      inputs_(cloned(inputs)),
      optimized_(parameters_of(options.optimizers)),
      tensors_(locations_of(module_and_optimizer_tensors(parts, options.optimizers))),
      states_(locations_of(state_tensors(options.optimizers))),
      states_before_(states_of(options.optimizers)),
      gradients_(trained_tensors(parts, options.optimizers)) {
  OperatorTrace trace(device_);
  try {
    record(step, options, trace);
    check(eager, trace, options.optimizers);
  } catch (...) {
    roll_back(options.optimizers);
    rethrow_as_error(trace);
  }
  record_step_counts(options.optimizers);
  gradients_.record_results();
}

void CapturedStep::record(const GraphedStep::Step& step, const GraphedStepOptions& options,
                          OperatorTrace& trace) {
  const GraphPhaseScope phase(GraphPhase::capture);
  const auto versions = versions_of(inputs_);
  graph_ = graph_under_capture();
  graph_->set(options.graph_device->record(
      [&] {
        const Tracing tracing(trace);
        outputs_ = detached(step(inputs_), device_);
      },
      options.generators));
  replay_actions_ = take_replay_actions();
  check_not_modified(inputs_, versions);
}

void CapturedStep::check(const OperatorTrace& eager, const OperatorTrace& trace,
                         const Optimizers& optimizers) const {
  if (!trace.error().empty()) {
    throw Error("GraphedStep: the step cannot be captured: " + trace.error());
  }
  if (states_of(optimizers).size() != states_before_.size()) {
    throw Error(
        "GraphedStep: an optimizer created state for a parameter during the capture, so every replay would "
        "repeat "
        "its first step; raise warmup until every trained parameter has had a gradient");
  }
  const auto difference = eager.difference(trace);
  if (difference.empty()) return;
  throw Error(
      fmt::format("GraphedStep: the step differs between calls, but a graph repeats the same work: {}. Pass "
                  "what changes as an input tensor, or move it out of the step",
                  difference));
}

// The capture ran the host part of each optimizer step once.
void CapturedStep::record_step_counts(const Optimizers& optimizers) {
  const auto after = states_of(optimizers);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const auto increment = after[i].step - states_before_[i].step;
    if (increment != 0) step_counts_.emplace_back(after[i], increment);
  }
}

void CapturedStep::roll_back(const Optimizers& optimizers) const {
  gradients_.restore();
  for (const auto& state : states_before_) set_step(state, state.step);
  for (const auto& state : states_of(optimizers)) {
    const bool is_new = std::ranges::none_of(states_before_, [&](const ParameterState& before) {
      return before.optimizer == state.optimizer && before.key == state.key;
    });
    if (is_new) state.optimizer->state().erase(state.key);
  }
}

bool CapturedStep::is_valid(const HostState& host, const ModuleParts& parts,
                            const Optimizers& optimizers) const {
  return host == host_ && gradients_.still_match() &&
         all_match(tensors_, module_and_optimizer_tensors(parts, optimizers)) &&
         all_match(states_, state_tensors(optimizers));
}

Tensors CapturedStep::replay(const Tensors& inputs, bool copy_outputs) {
  {
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  }
  graph_->replay();
  for (const auto& action : replay_actions_) action();
  if (replayed_) {
    for (const auto& [state, increment] : step_counts_) advance_step(state, increment);
  }
  replayed_ = true;
  gradients_.assign_results();
  // As an optimizer's in-place update does, so that autograd detects stale saved tensors.
  for (const auto& parameter : optimized_) parameter.unsafeGetTensorImpl()->bump_version();
  if (!copy_outputs) return outputs_;
  Tensors copies;
  for (const auto& output : outputs_) copies.push_back(output.defined() ? output.clone() : output);
  return copies;
}

}  // namespace lockstep::graphs
