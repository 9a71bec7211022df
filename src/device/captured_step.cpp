// SPDX-License-Identifier: BSD-3-Clause
#include "device/captured_step.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_phase.h>

namespace lockstep::graphs {
namespace {

using Tensors = GraphedStep::Tensors;

std::vector<at::Tensor> joined_tensors(std::vector<at::Tensor> first, const std::vector<at::Tensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<at::Tensor> trained(const ModuleParts& parts, const Optimizers& optimizers) {
  return each_once(joined_tensors(parts.parameters, parameters_of(optimizers)));
}

std::vector<at::Tensor> state_tensors(const Optimizers& optimizers) {
  std::vector<at::Tensor> tensors;
  for (const auto& state : states_of(optimizers)) {
    tensors.insert(tensors.end(), state.tensors.begin(), state.tensors.end());
  }
  return tensors;
}

Tensors copies_of(const Tensors& tensors) {
  const c10::NoGradGuard no_grad;
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace

std::vector<at::Tensor> kept_tensors(const ModuleParts& parts, const Optimizers& optimizers) {
  return joined_tensors(trained(parts, optimizers), parts.buffers);
}

Tensors detached(const Tensors& outputs, c10::Device device) {
  Tensors plain;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].device().type() != device.type()) {
      throw Error(
          fmt::format("GraphedStep: output {} of the step is on {}, so it was waited for; return it on {}", i,
                      outputs[i].device().str(), device.str()));
    }
    plain.push_back(outputs[i].defined() ? outputs[i].detach() : outputs[i]);
  }
  return plain;
}

std::vector<std::uint32_t> versions_of(const Tensors& inputs) {
  std::vector<std::uint32_t> versions;
  for (const auto& input : inputs) {
    versions.push_back(input.is_inference() ? 0 : static_cast<std::uint32_t>(input._version()));
  }
  return versions;
}

void check_unwritten(const Tensors& inputs, const std::vector<std::uint32_t>& versions) {
  const auto now = versions_of(inputs);
  const auto [written, before] = std::ranges::mismatch(now, versions);
  if (written == now.end()) return;
  throw Error(
      fmt::format("GraphedStep: the step writes to its input {}, of which a graph has a copy of its own; "
                  "write to a clone",
                  written - now.begin()));
}

CapturedStep::CapturedStep(c10::Device device, const GraphedStep::Step& step, const Tensors& inputs,
                           const GraphedStepOptions& options, const ModuleParts& parts, HostState host,
                           const OperatorTrace& eager)
    : device_(device),
      host_(std::move(host)),
      inputs_(copies_of(inputs)),
      stepped_(parameters_of(options.optimizers)),
      places_(places_of(kept_tensors(parts, options.optimizers))),
      states_(places_of(state_tensors(options.optimizers))),
      states_before_(states_of(options.optimizers)),
      gradients_(trained(parts, options.optimizers)) {
  OperatorTrace trace(device_);
  try {
    record(step, options, trace);
    check(eager, trace, options.optimizers);
  } catch (const Error&) {
    undo(options.optimizers);
    throw;
  } catch (const std::exception& error) {
    undo(options.optimizers);
    const auto why = trace.obstacle().empty() ? "" : trace.obstacle() + "; ";
    std::throw_with_nested(Error(fmt::format(
        "GraphedStep: the step ended with an error while it was captured: {}{}", why, error.what())));
  } catch (...) {
    undo(options.optimizers);
    throw;
  }
  count_steps(options.optimizers);
  gradients_.captured();
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
  check_unwritten(inputs_, versions);
}

void CapturedStep::check(const OperatorTrace& eager, const OperatorTrace& trace,
                         const Optimizers& optimizers) const {
  if (!trace.obstacle().empty()) {
    throw Error("GraphedStep: the step cannot be captured: " + trace.obstacle());
  }
  if (states_of(optimizers).size() != states_before_.size()) {
    throw Error(
        "GraphedStep: an optimizer made state for a parameter while the step was captured, so its next step "
        "would "
        "be a first one for ever; raise warmup until every parameter that is trained has had a gradient");
  }
  const auto difference = eager.difference(trace);
  if (difference.empty()) return;
  throw Error(fmt::format(
      "GraphedStep: the step is not the same from call to call, but a graph would be: {}. Pass what "
      "changes as an input tensor, or leave it out of the step",
      difference));
}

// The host's part of each captured optimizer step is done once: now.
void CapturedStep::count_steps(const Optimizers& optimizers) {
  const auto after = states_of(optimizers);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const auto moved = after[i].step - states_before_[i].step;
    if (moved != 0) counted_.emplace_back(after[i], moved);
  }
}

void CapturedStep::undo(const Optimizers& optimizers) const {
  gradients_.restore();
  for (const auto& state : states_before_) set_step(state, state.step);
  for (const auto& state : states_of(optimizers)) {
    const bool made = std::ranges::none_of(states_before_, [&](const ParameterState& before) {
      return before.optimizer == state.optimizer && before.key == state.key;
    });
    if (made) state.optimizer->state().erase(state.key);
  }
}

bool CapturedStep::fits(const HostState& host, const ModuleParts& parts, const Optimizers& optimizers) const {
  return host == host_ && gradients_.fit() && all_hold(places_, kept_tensors(parts, optimizers)) &&
         all_hold(states_, state_tensors(optimizers));
}

Tensors CapturedStep::replay(const Tensors& inputs, bool copy_outputs) {
  {
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  }
  graph_->replay();
  for (const auto& action : replay_actions_) action();
  if (replayed_) {
    for (const auto& [state, moved] : counted_) advance_step(state, moved);
  }
  replayed_ = true;
  gradients_.deliver();
  // As the optimizers' own writing does: a graph of before knows that its saved values are gone.
  for (const auto& parameter : stepped_) parameter.unsafeGetTensorImpl()->bump_version();
  if (!copy_outputs) return outputs_;
  Tensors copies;
  for (const auto& output : outputs_) copies.push_back(output.defined() ? output.clone() : output);
  return copies;
}

}  // namespace lockstep::graphs
