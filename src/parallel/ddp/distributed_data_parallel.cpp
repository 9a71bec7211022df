// SPDX-License-Identifier: BSD-3-Clause

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include <lockstep/ddp/distributed_data_parallel.h>

#include "base/throw_error.h"
#include "ddp/autograd_hooks.h"
#include "ddp/ddp_state.h"
#include "modules/agreement.h"
#include "nn/synced_batch_norm.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

const torch::nn::Module& moved_to_device(const std::shared_ptr<torch::nn::Module>& module,
                                         const DistributedDataParallelOptions& options,
                                         std::source_location where) {
  const auto group = runtime::group_or_default(options.process_group, "DistributedDataParallel");
  const auto ranks = group ? std::vector{*group} : std::vector<ProcessGroup>{};
  modules::tell_on_failure(ranks, "DistributedDataParallel", where, [&] {
    if (!module)
      throw ArgumentError("DistributedDataParallel: the module is empty (a null holder or pointer)");
    if (options.device) module->to(*options.device);
  });
  return *module;
}

}  // namespace

DistributedDataParallelModule::DistributedDataParallelModule(const std::shared_ptr<torch::nn::Module>& module,
                                                             const DistributedDataParallelOptions& options,
                                                             std::source_location where)
    : nn::WrapperModule("DistributedDataParallel"),
      watches_outputs_(options.find_unused_parameters || options.static_graph || options.output_device),
      device_(options.device),
      input_dtype_(options.mixed_precision && options.mixed_precision->cast_forward_inputs
                       ? options.mixed_precision->param_dtype
                       : std::nullopt),
      output_device_(options.output_device),
      state_(
          std::make_unique<ddp::DdpState>(moved_to_device(module, options, where), options, sync_, where)) {}

DistributedDataParallelModule::~DistributedDataParallelModule() = default;

at::Tensor DistributedDataParallelModule::prepare(const at::Tensor& argument) const {
  const auto moved = device_ ? argument.to(*device_) : argument;
  return input_dtype_ && moved.is_floating_point() ? moved.to(*input_dtype_) : moved;
}

void DistributedDataParallelModule::begin_join() { state_->begin_join(nn::synced_layers(*this)); }

std::vector<at::Tensor> DistributedDataParallelModule::averaged_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& each : state_->parameters()) parameters.push_back(each.tensor);
  return parameters;
}

void DistributedDataParallelModule::before_forward() {
  state_->prepare_for_forward(sync_, join_options().has_value());
  std::optional<ddp::DdpState::Joined> joined;
  if (join_options()) joined.emplace(ddp::DdpState::Joined{*join_options(), notify_join_context()});
  state_->before_forward(sync_, joined);
}

std::vector<at::Tensor> DistributedDataParallelModule::after_forward(std::vector<at::Tensor> outputs) {
  state_->after_forward(sync_, outputs);
  if (c10::GradMode::is_enabled() && state_->has_reducer() && state_->reducer().watches_outputs()) {
    ddp::pass_through_sink(outputs, [weak = state_->weak_reducer()] {
      if (const auto reducer = weak.lock()) reducer->on_backward_begin();
    });
  }
  if (output_device_) {
    for (auto& output : outputs) output = output.to(*output_device_);
  }
  return outputs;
}

void DistributedDataParallelModule::throw_unknown_output(const char* type) {
  throw_error<ArgumentError>(
      "DistributedDataParallel: forward() returns {}, in which tensors cannot be found, as "
      "find_unused_parameters, static_graph and output_device need it; give it a visit_tensors() or "
      "specialize lockstep::TensorVisitor",
      c10::demangle(type));
}

void DistributedDataParallelModule::register_comm_hook(CommHook hook) {
  if (!state_->has_reducer()) {
    throw ArgumentError("DistributedDataParallel: all parameters are delayed, so there is no bucket to hook");
  }
  state_->register_comm_hook(std::move(hook));
}

bool DistributedDataParallelModule::has_averaged_gradients() const {
  return state_->has_averaged_gradients();
}

void DistributedDataParallelModule::sync_buffers() { state_->sync_buffers(); }

void DistributedDataParallelModule::shadow_iteration() { state_->shadow_iteration(); }
void DistributedDataParallelModule::finish_join(bool is_last_joiner) { state_->finish_join(is_last_joiner); }
c10::Device DistributedDataParallelModule::join_device() const { return state_->device(); }

const std::vector<std::shared_ptr<torch::optim::Optimizer>>& DistributedDataParallelModule::optimizers()
    const {
  static const std::vector<std::shared_ptr<torch::optim::Optimizer>> none;
  return state_->has_reducer() ? state_->reducer().optimizers() : none;
}

void DistributedDataParallelModule::trace(const std::string& path, int steps) {
  if (!state_->has_reducer()) {
    throw ArgumentError("trace: all parameters are delayed, so there are no buckets to trace");
  }
  ddp::check({ddp::Feature::trace}, ddp::Feature::python_ranks, process_group());
  state_->reducer().trace().begin(path, steps);
}

DdpStats DistributedDataParallelModule::stats() const {
  if (!state_->has_reducer()) return {};
  const auto& reducer = state_->reducer();
  return {.steps = reducer.clock().steps(),
          .last = reducer.clock().last(),
          .mean = reducer.clock().mean(),
          .buckets = buckets(),
          .arrived_last = reducer.arrived_last()};
}

std::vector<BucketInfo> DistributedDataParallelModule::buckets() const {
  std::vector<BucketInfo> infos;
  if (!state_->has_reducer()) return infos;
  const auto& reducer = state_->reducer();
  for (const auto& bucket : reducer.buckets()) {
    BucketInfo info{.bytes = bucket.bytes};
    for (const auto& slot : bucket.slots) {
      info.parameters.push_back(reducer.parameters()[slot.parameter].name);
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

const ProcessGroup& DistributedDataParallelModule::process_group() const { return state_->group(); }

}  // namespace lockstep
