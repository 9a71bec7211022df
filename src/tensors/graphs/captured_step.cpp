// SPDX-License-Identifier: BSD-3-Clause
#include "graphs/captured_step.h"

#include <algorithm>
#include <unordered_set>

#include "base/throw_error.h"
#include "graphs/graph_phase.h"

namespace lockstep::graphs {
namespace {

using Tensors = GraphedStep::Tensors;

std::vector<TensorLocation> locations_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorLocation> places;
  places.reserve(tensors.size());
  for (const auto& tensor : tensors) places.emplace_back(tensor);
  return places;
}

bool all_match(const std::vector<TensorLocation>& places, const std::vector<at::Tensor>& tensors) {
  return std::ranges::equal(places, tensors, [](const TensorLocation& place, const at::Tensor& tensor) {
    return place.matches(tensor);
  });
}

std::vector<at::Tensor> without_duplicates(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> once;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back(tensor);
  }
  return once;
}

std::vector<at::Tensor> concatenated(std::vector<at::Tensor> first, const std::vector<at::Tensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<at::Tensor> trained_tensors(const ModuleParts& parts, const Optimizers& optimizers) {
  return without_duplicates(concatenated(parts.parameters, parameters_of(optimizers)));
}

// Parameters, each once, then buffers.
std::vector<at::Tensor> module_and_optimizer_tensors(const ModuleParts& parts, const Optimizers& optimizers) {
  return concatenated(trained_tensors(parts, optimizers), parts.buffers);
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

TensorLocation::TensorLocation(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  dtype_ = tensor.scalar_type();
  requires_grad_ = tensor.requires_grad();
  sizes_ = tensor.sizes().vec();
  if (tensor.layout() != at::kStrided) return;  // matches nothing
  storage_ = tensor.storage();
  data_ = tensor.const_data_ptr();
  strides_ = tensor.strides().vec();
}

bool TensorLocation::matches(const at::Tensor& now) const {
  if (!now.defined() || !storage_) return !now.defined() && !storage_ && sizes_.empty();
  return now.layout() == at::kStrided && now.const_data_ptr() == data_ && now.scalar_type() == dtype_ &&
         now.requires_grad() == requires_grad_ && now.sizes() == at::IntArrayRef(sizes_) &&
         now.strides() == at::IntArrayRef(strides_);
}

ModuleParts::ModuleParts(const std::vector<ModuleRef>& roots) {
  for (const auto& root : roots) {
    for (auto& module : root->modules()) modules.push_back(std::move(module));
    for (auto& tensor : root->parameters()) parameters.push_back(std::move(tensor));
    for (auto& tensor : root->buffers()) buffers.push_back(std::move(tensor));
  }
  parameters = without_duplicates(parameters);
  buffers = without_duplicates(buffers);
}

std::vector<bool> ModuleParts::modes() const {
  std::vector<bool> training;
  training.reserve(modules.size());
  for (const auto& module : modules) training.push_back(module->is_training());
  return training;
}

CapturedGradients::CapturedGradients(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  for (const auto& parameter : parameters_) before_.push_back(parameter.grad());
  before_locations_ = locations_of(before_);
}

void CapturedGradients::record_results() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    after_.push_back(parameters_[i].grad());
    is_input_.push_back(!before_[i].defined() || before_locations_[i].matches(after_[i]));
  }
  before_.clear();  // before_locations_ keeps the memory
}

bool CapturedGradients::still_match() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_input_[i] && !before_locations_[i].matches(parameters_[i].grad())) return false;
  }
  return true;
}

void CapturedGradients::assign_results() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = after_[i];
}

void CapturedGradients::restore() const {
  for (std::size_t i = 0; i < before_.size(); ++i) parameters_[i].mutable_grad() = before_[i];
}

Tensors detached(const Tensors& outputs, c10::Device device) {
  Tensors detached_outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].device().type() != device.type()) {
      throw_error<Error>(
          "GraphedStep: output {} of the step is on {}, which requires a synchronization; return it on {}", i,
          outputs[i].device().str(), device.str());
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
  throw_error<Error>("GraphedStep: the step writes to its input {}, which a graph copies; write to a clone",
                     written - now.begin());
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
        "repeat its first step; raise warmup until every trained parameter has had a gradient");
  }
  const auto difference = eager.difference(trace);
  if (difference.empty()) return;
  throw_error<Error>(
      "GraphedStep: the step differs between calls, but a graph repeats the same work: {}. Pass what changes "
      "as an input tensor, or move it out of the step",
      difference);
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
  for (const auto& state : states_before_)
    if (auto* step = step_of(state)) *step = state.step;
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
    for (const auto& [state, increment] : step_counts_) *step_of(state) += increment;
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
