// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/wrapped_tensors.h"

#include <algorithm>

#include "base/throw_error.h"
#include "ddp/option_rules.h"
#include "device/module_snapshot.h"

namespace lockstep::ddp {
namespace {

// The tensors of these names, in their order.
std::vector<modules::NamedTensor> find_all(const std::vector<modules::NamedTensor>& tensors,
                                           const std::vector<std::string>& names, const char* option) {
  std::vector<modules::NamedTensor> found;
  for (const auto& name : names) {
    const auto at = std::ranges::find(tensors, name, &modules::NamedTensor::name);
    if (at == tensors.end()) {
      throw_error<ArgumentError>("DistributedDataParallel: {}: the module has no {}", option, name);
    }
    found.push_back(*at);
  }
  return found;
}

std::vector<modules::NamedTensor> without(std::vector<modules::NamedTensor> tensors,
                                          const std::vector<std::string>& names) {
  std::erase_if(tensors, [&](const modules::NamedTensor& each) {
    return std::ranges::find(names, each.name) != names.end();
  });
  return tensors;
}

}  // namespace

std::vector<modules::NamedTensor> joined(std::vector<modules::NamedTensor> first,
                                         const std::vector<modules::NamedTensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

c10::Device common_device(const std::vector<modules::NamedTensor>& parameters) {
  const auto device = parameters.front().tensor.device();
  for (const auto& [name, tensor] : parameters) {
    if (tensor.device().type() == device.type()) continue;
    throw_error<ArgumentError>(
        "DistributedDataParallel: the parameters are on devices of several types: {} is on {}, {} on {}",
        parameters.front().name, device.str(), name, tensor.device().str());
  }
  return device;
}

c10::Device WrappedTensors::check() const {
  const auto parameters = modules::distinct(module_.named_parameters());
  if (std::ranges::none_of(parameters, [](const auto& each) { return each.tensor.requires_grad(); })) {
    throw_error<ArgumentError>(
        "DistributedDataParallel: {} has no parameter that requires a gradient, so there is nothing to "
        "reduce; use it unwrapped",
        module_.name());
  }
  const auto device = common_device(parameters);
  find_all(joined(parameters, modules::distinct(module_.named_buffers())),
           options_.params_and_buffers_to_ignore, "params_and_buffers_to_ignore");
  return device;
}

std::vector<TrainedParameter> WrappedTensors::look() {
  parameters_ = not_ignored(modules::distinct(module_.named_parameters()));
  buffers_ = not_ignored(modules::distinct(module_.named_buffers()));
  untrained_ = undelayed();
  auto trained = trained_parameters(module_, untrained_);
  std::erase_if(untrained_, [](const modules::NamedTensor& each) { return each.tensor.requires_grad(); });
  return trained;
}

std::vector<modules::NamedTensor> WrappedTensors::not_ignored(
    std::vector<modules::NamedTensor> tensors) const {
  return without(std::move(tensors), options_.params_and_buffers_to_ignore);
}

bool WrappedTensors::ignores(const std::string& name) const {
  const auto& names = options_.params_and_buffers_to_ignore;
  return std::ranges::find(names, name) != names.end();
}

std::vector<modules::NamedTensor> WrappedTensors::delayed() const {
  return find_all(parameters_, options_.delay_all_reduce_named_params, "delay_all_reduce_named_params");
}

std::vector<modules::NamedTensor> WrappedTensors::undelayed() const {
  return without(parameters_, options_.delay_all_reduce_named_params);
}

at::Tensor WrappedTensors::param_to_hook_all_reduce() const {
  return find_all(modules::distinct(module_.named_parameters()), {options_.param_to_hook_all_reduce},
                  "param_to_hook_all_reduce")
      .front()
      .tensor;
}

std::vector<modules::NamedTensor> WrappedTensors::added() const {
  auto parameters = modules::distinct(module_.named_parameters());
  for (auto& [name, tensor] : device::unregistered_parameters(module_))
    parameters.push_back({std::move(name), std::move(tensor)});
  parameters = not_ignored(std::move(parameters));
  std::erase_if(parameters, [&](const modules::NamedTensor& each) {
    const auto is_this = [&](const modules::NamedTensor& other) { return other.tensor.is_same(each.tensor); };
    return !each.tensor.requires_grad() || !each.tensor.grad().defined() ||
           std::ranges::any_of(parameters_, is_this);
  });
  return parameters;
}

modules::ModuleText WrappedTensors::text(const std::string& more) const {
  std::string lines;
  const auto add = [&](const char* kind, const std::vector<modules::NamedTensor>& tensors) {
    for (const auto& each : tensors)
      lines += modules::describe(kind, each) + (each.tensor.requires_grad() ? "\n" : ", no gradient\n");
  };
  add("parameter", not_ignored(modules::distinct(module_.named_parameters())));
  add("buffer", not_ignored(modules::distinct(module_.named_buffers())));
  return {.user = "DistributedDataParallel",
          .lines = lines + "options of DistributedDataParallel\t" + options_text(options_) + "\n" + more,
          .advice = "Build the same module with the same options on every rank"};
}

}  // namespace lockstep::ddp
