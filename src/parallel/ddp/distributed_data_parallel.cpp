// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <fnmatch.h>
#include <string_view>
#include <unordered_set>

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/device/device.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "ddp/autograd_hooks.h"
#include "ddp/ddp_state.h"
#include "intercept/storage_guard.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "modules/bucket_order.h"
#include "modules/gradient_norm.h"
#include "nn/synced_batch_norm.h"
#include "optim/unaveraged.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

std::optional<c10::Device> device_of(const DistributedDataParallelOptions& options) {
  if (options.device_ids.empty()) return std::nullopt;
  return options.device_ids.front();
}

const torch::nn::Module& moved_to_device(const std::shared_ptr<torch::nn::Module>& module,
                                         const DistributedDataParallelOptions& options,
                                         std::source_location where) {
  const auto group = runtime::group_or_default(options.process_group, "DistributedDataParallel");
  const auto ranks = group ? std::vector{*group} : std::vector<ProcessGroup>{};
  modules::tell_on_failure(ranks, "DistributedDataParallel", where, [&] {
    if (!module)
      throw ArgumentError("DistributedDataParallel: the module is empty (a null holder or pointer)");
    if (options.device_ids.size() > 1) {
      throw_error<ArgumentError>(
          "DistributedDataParallel: device_ids has {} devices; a rank trains on one: start one rank for each device",
          options.device_ids.size());
    }
    const auto device = device_of(options);
    if (device) require_device("DistributedDataParallel: device_ids", *device);
    if (options.output_device)
      require_device("DistributedDataParallel: output_device", c10::Device(*options.output_device));
    if (device) module->to(*device);
  });
  return *module;
}

}  // namespace

DistributedDataParallelModule::DistributedDataParallelModule(const std::shared_ptr<torch::nn::Module>& module,
                                                             const DistributedDataParallelOptions& options,
                                                             std::source_location where)
    : nn::WrapperModule("DistributedDataParallel"),
      watches_outputs_(options.find_unused_parameters || options.static_graph || options.output_device),
      device_(device_of(options)),
      input_dtype_(options.mixed_precision && options.mixed_precision->cast_forward_inputs
                       ? options.mixed_precision->param_dtype
                       : std::nullopt),
      output_device_(options.output_device ? std::optional(c10::Device(*options.output_device))
                                           : std::nullopt),
      state_([&] {
        const CallerPlace place(where);
        return std::make_unique<ddp::DdpState>(moved_to_device(module, options, where), options, sync_,
                                               where);
      }()) {}

DistributedDataParallelModule::~DistributedDataParallelModule() = default;

at::Tensor DistributedDataParallelModule::prepare(const at::Tensor& argument) const {
  const auto moved = device_ ? argument.to(*device_) : argument;
  return input_dtype_ && moved.is_floating_point() ? moved.to(*input_dtype_) : moved;
}

std::vector<std::int64_t> ddp::BucketOrder::of(const DistributedDataParallelModule& module) {
  if (!module.state_->has_reducer()) return {};
  return std::as_const(*module.state_).reducer().gradient_order();
}

void ddp::BucketOrder::restore(DistributedDataParallelModule& module, std::vector<std::int64_t> order) {
  if (module.state_->has_reducer()) module.state_->reducer().restore_gradient_order(std::move(order));
}

void DistributedDataParallelModule::begin_join() { state_->begin_join(nn::synced_layers(*this)); }

std::vector<at::Tensor> DistributedDataParallelModule::averaged_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& each : state_->parameters()) parameters.push_back(each.tensor);
  return parameters;
}

void DistributedDataParallelModule::before_forward() {
  const CallerPlace place(state_->where());
  if (state_->is_replaying()) return;
  state_->prepare_for_forward(sync_, join_options().has_value());
  std::optional<ddp::DdpState::Joined> joined;
  if (join_options()) joined.emplace(ddp::DdpState::Joined{*join_options(), notify_join_context()});
  state_->before_forward(sync_, joined);
}

std::vector<at::Tensor> DistributedDataParallelModule::after_forward(std::vector<at::Tensor> outputs) {
  const CallerPlace place(state_->where());
  const bool is_replaying = state_->is_replaying();
  if (!is_replaying) state_->after_forward(sync_, outputs);
  if (!is_replaying && c10::GradMode::is_enabled() && state_->has_reducer() &&
      state_->reducer().watches_outputs()) {
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

void DistributedDataParallelModule::register_comm_hook(CommHook hook, std::source_location where) {
  const CallerPlace place(where);
  if (!state_->has_reducer()) {
    throw ArgumentError("DistributedDataParallel: all parameters are delayed, so there is no bucket to hook");
  }
  state_->register_comm_hook(std::move(hook));
}

bool DistributedDataParallelModule::has_averaged_gradients() const {
  return state_->has_averaged_gradients();
}

void DistributedDataParallelModule::sync_buffers(std::source_location where) {
  const CallerPlace place(where);
  state_->sync_buffers();
}

void DistributedDataParallelModule::shadow_iteration() {
  const CallerPlace place(state_->where());
  state_->shadow_iteration();
}
void DistributedDataParallelModule::finish_join(bool is_last_joiner) {
  const CallerPlace place(state_->where());
  state_->finish_join(is_last_joiner);
}
c10::Device DistributedDataParallelModule::join_device() const { return state_->device(); }

void DistributedDataParallelModule::require_can_rejoin() const {
  const CallerPlace place(state_->where());
  state_->require_can_rejoin(join_options().has_value());
}
void DistributedDataParallelModule::rejoin() {
  const CallerPlace place(state_->where());
  state_->rejoin(sync_, join_options().has_value());
}

const std::vector<std::shared_ptr<torch::optim::Optimizer>>& DistributedDataParallelModule::optimizers()
    const {
  static const std::vector<std::shared_ptr<torch::optim::Optimizer>> none;
  return state_->has_reducer() ? state_->reducer().optimizers() : none;
}

void DistributedDataParallelModule::trace(const std::string& path, int steps, std::source_location where) {
  const CallerPlace place(where);
  if (!state_->has_reducer()) {
    throw ArgumentError("trace: all parameters are delayed, so there are no buckets to trace");
  }
  ddp::check_on(process_group(), ddp::Feature::trace);
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

namespace {

// The gradients that exist, each once: LibTorch lists a parameter once for each of its names. Coalesces
// sparse ones.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> known;
  for (const auto& parameter : parameters) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined() || !known.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (gradient.is_sparse()) gradient = gradient.coalesce();
    gradients.push_back(gradient);
  }
  return gradients;
}

std::vector<at::Tensor> averaged_gradients(const DistributedDataParallelModule& ddp, const char* function) {
  const auto& group = ddp.process_group();
  const auto who = fmt::format("{}: {}", numbered_rank(group.rank(), group.size()), function);
  if (!ddp.optimizers().empty()) {
    throw Error(who +
                ": with optimizer_in_backward gradients are gone when backward ends; clip inside of it");
  }
  if (!ddp.has_averaged_gradients()) {
    throw Error(
        who +
        ": the gradients are not averaged over the ranks: a backward was made in no_sync() or from a forward "
        "of the wrapped module itself, or did not finish; clip after the backward that reduces them");
  }
  return gradients_of(ddp.averaged_parameters());
}

void refuse_parts(const DistributedDataParallelModule& ddp) {
  for (const auto& parameter : ddp.averaged_parameters()) {
    if (intercept::operator_guard_of(parameter) == nullptr) continue;
    throw_error<ArgumentError>(
        "clip_grad_norm_: this rank has a part of a parameter of {} elements, by parallelize_module(), so "
        "the norm needs the other ranks; call clip_grad_norm_(module, max_norm) with the wrapped module",
        parameter.numel());
  }
}

void check_clip_value(double clip_value) {
  if (!(clip_value >= 0))
    throw_error<ArgumentError>("clip_grad_value_: clip_value is {}; it must be 0 or more", clip_value);
}

void clamp(const std::vector<at::Tensor>& gradients, double clip_value) {
  if (std::ranges::any_of(gradients, [](const auto& gradient) { return gradient.is_complex(); }))
    throw ArgumentError(
        "clip_grad_value_: a gradient is complex, and complex numbers have no order; call clip_grad_norm_");
  for (const auto& gradient : gradients) {
    const auto values = gradient.is_sparse() ? gradient.values() : gradient;
    values.clamp_(-clip_value, clip_value);
  }
}

// fnmatch()'s pattern for one in which only * and ? are special.
std::string without_brackets(const std::string& pattern) {
  std::string text;
  for (const char c : pattern) text += c == '[' ? "[[]" : std::string(1, c);
  return text;
}

// The name itself or that of a module that it is in.
bool matches(std::string_view name, const std::string& pattern) {
  const auto shell_pattern = without_brackets(pattern);
  for (auto end = name.size(); end != std::string_view::npos && end > 0; end = name.rfind('.', end - 1)) {
    if (::fnmatch(shell_pattern.c_str(), std::string(name.substr(0, end)).c_str(), FNM_NOESCAPE) == 0)
      return true;
  }
  return false;
}

void refuse_idle(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                 const std::vector<std::string>& patterns, const char* function) {
  for (const auto& pattern : patterns) {
    const bool used =
        std::ranges::any_of(parameters.keys(), [&](const auto& name) { return matches(name, pattern); });
    if (!used) throw_error<ArgumentError>("{}: no parameter's name matches {}", function, pattern);
  }
}

std::vector<std::string> freeze_where(torch::nn::Module& module, const std::vector<std::string>& patterns,
                                      bool matching, const char* function) {
  const auto parameters = module.named_parameters();
  refuse_idle(parameters, patterns, function);
  // A tied parameter has several names, of which one suffices.
  std::unordered_set<const void*> matched;
  for (const auto& item : parameters) {
    const bool any =
        std::ranges::any_of(patterns, [&](const auto& pattern) { return matches(item.key(), pattern); });
    if (any) matched.insert(item.value().unsafeGetTensorImpl());
  }
  std::vector<std::string> frozen;
  for (const auto& item : parameters) {
    if (matched.contains(item.value().unsafeGetTensorImpl()) != matching) continue;
    item.value().set_requires_grad(false);
    frozen.push_back(item.key());
  }
  return frozen;
}

}  // namespace

double clip_grad_norm_(DistributedDataParallelModule& ddp, double max_norm,
                       const ClipGradNormOptions& options, std::source_location where) {
  const CallerPlace place(where);
  refuse_parts(ddp);
  std::vector<modules::CountedGradient> gradients;
  for (auto& gradient : averaged_gradients(ddp, "clip_grad_norm_"))
    gradients.push_back({std::move(gradient)});
  return modules::clip_gradients(gradients, max_norm, options);
}

void clip_grad_value_(DistributedDataParallelModule& ddp, double clip_value, std::source_location where) {
  const CallerPlace place(where);
  check_clip_value(clip_value);
  const c10::NoGradGuard no_grad;
  clamp(averaged_gradients(ddp, "clip_grad_value_"), clip_value);
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                      std::source_location where) {
  const CallerPlace place(where);
  check_clip_value(clip_value);
  optim::refuse_step("clip_grad_value_", parameters);
  const c10::NoGradGuard no_grad;
  clamp(gradients_of(parameters), clip_value);
}

std::vector<std::string> freeze(ModuleRef module, const std::vector<std::string>& patterns,
                                std::source_location where) {
  const CallerPlace place(where);
  return freeze_where(module, patterns, true, "freeze");
}

std::vector<std::string> freeze_all_but(ModuleRef module, const std::vector<std::string>& patterns,
                                        std::source_location where) {
  const CallerPlace place(where);
  return freeze_where(module, patterns, false, "freeze_all_but");
}

void broadcast_module(ModuleRef module, int src, const std::optional<ProcessGroup>& process_group,
                      std::source_location where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(process_group, "broadcast_module()");
  auto tensors = modules::distinct(module->named_parameters());
  for (auto& buffer : modules::distinct(module->named_buffers())) tensors.push_back(std::move(buffer));
  std::string lines;
  for (const auto& item : tensors) lines += modules::describe("tensor", item) + "\n";
  modules::check_same_on_all_ranks(
      group, {.user = "broadcast_module", .lines = lines, .advice = "Build the same module on every rank"},
      where);
  modules::check_can_be_sent(group, "broadcast_module", tensors);
  modules::broadcast_from(group, src, tensors, where);
  for (const auto& each : tensors) optim::unmark_unaveraged(each.tensor);
}

}  // namespace lockstep
