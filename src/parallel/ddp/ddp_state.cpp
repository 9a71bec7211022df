// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/ddp_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/announced_calls.h"
#include "comm/group_state.h"
#include "graphs/graph_phase.h"
#include "intercept/storage_guard.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "ddp/python_sync.h"
#include "optim/unaveraged.h"
#include "runtime/run.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
constexpr std::size_t kFirstBucketBytes = kMiB;
constexpr std::size_t kBucketBytes = 25 * kMiB;

std::size_t to_bytes(double mebibytes, const char* name) {
  if (!std::isfinite(mebibytes) || mebibytes <= 0 || mebibytes > 1e9) {
    throw_error<ArgumentError>("DistributedDataParallel: {} is {} MiB; it must be positive", name, mebibytes);
  }
  return static_cast<std::size_t>(mebibytes * static_cast<double>(kMiB));
}

BucketLimits limits_from(const DistributedDataParallelOptions& options) {
  if (!options.bucket_cap_mb_list.empty()) {
    if (options.bucket_cap_mb) {
      throw ArgumentError("DistributedDataParallel: give bucket_cap_mb or bucket_cap_mb_list, not both");
    }
    std::vector<std::size_t> limits;
    for (const double cap : options.bucket_cap_mb_list) limits.push_back(to_bytes(cap, "bucket_cap_mb_list"));
    return {limits, limits};
  }
  // The first backward uses one bucket: the order of gradients is not known yet.
  const std::vector<std::size_t> all{static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())};
  if (!options.bucket_cap_mb) return {all, {kFirstBucketBytes, kBucketBytes}};
  const auto cap = to_bytes(*options.bucket_cap_mb, "bucket_cap_mb");
  return {all, {cap}};
}

void check_options(const DistributedDataParallelOptions& options) {
  if (options.delay_all_reduce_named_params.empty() != options.param_to_hook_all_reduce.empty()) {
    throw ArgumentError(
        "DistributedDataParallel: set both or none of delay_all_reduce_named_params and "
        "param_to_hook_all_reduce");
  }
  if (options.skip_all_reduce_unused_params && !options.find_unused_parameters && !options.static_graph) {
    throw ArgumentError(
        "DistributedDataParallel: skip_all_reduce_unused_params needs find_unused_parameters or "
        "static_graph, which find the unused ones");
  }
}

void check_mixed_precision(const DistributedDataParallelOptions& options) {
  if (!options.mixed_precision) return;
  const auto refuse = [](bool set, const char* name) {
    if (set) {
      throw_error<ArgumentError>("DistributedDataParallel: mixed_precision excludes {}", name);
    }
  };
  refuse(options.static_graph, "static_graph");
  refuse(static_cast<bool>(options.optimizer_in_backward), "optimizer_in_backward");
  refuse(!options.delay_all_reduce_named_params.empty(), "delay_all_reduce_named_params");
  const auto& types = *options.mixed_precision;
  for (const auto& dtype : {types.param_dtype, types.reduce_dtype, types.buffer_dtype}) {
    if (!dtype || c10::isFloatingType(*dtype)) continue;
    throw_error<ArgumentError>("DistributedDataParallel: mixed_precision: {} is not a floating-point type",
                               c10::toString(*dtype));
  }
}

// Options whose calls differ from Python's, or are not compared with them.
void check_with_python(const DistributedDataParallelOptions& options, const comm::GroupState& group) {
  const auto refuse = [&](bool set, const char* name) {
    if (set)
      comm::refuse_with_python(group, std::string("DistributedDataParallel's ") + name, "leave it out");
  };
  refuse(options.mixed_precision.has_value(), "mixed_precision");
  refuse(options.skip_all_reduce_unused_params, "skip_all_reduce_unused_params");
  refuse(static_cast<bool>(options.optimizer_in_backward), "optimizer_in_backward");
  refuse(!options.delay_all_reduce_named_params.empty(), "delay_all_reduce_named_params");
}

// Divides after summing, as PyTorch does here.
CommHook reduce_in(std::optional<at::ScalarType> dtype) {
  return [dtype](GradBucket& bucket) {
    const auto buffer = dtype ? bucket.buffer().to(*dtype) : bucket.buffer();
    auto work = bucket.process_group().all_reduce_async(buffer);
    return BucketWork(std::move(work), buffer).then([ranks = bucket.process_group().size()](at::Tensor sum) {
      return sum.div_(ranks);
    });
  };
}

std::string text_of(const std::optional<MixedPrecision>& types) {
  if (!types) return "none";
  const auto name = [](const auto& dtype) { return dtype ? c10::toString(*dtype) : "-"; };
  return fmt::format("{}/{}/{}", name(types->param_dtype), name(types->reduce_dtype),
                     name(types->buffer_dtype));
}

// The options that ranks must share to make the same calls. Ignored names may differ; those that are left
// are compared.
std::string text_of(const DistributedDataParallelOptions& options) {
  return fmt::format(
      "init_sync={} broadcast_buffers={} forward_sync_buffers={} bucket_cap_mb={} bucket_cap_mb_list=[{}] "
      "find_unused_parameters={} static_graph={} skip_all_reduce_unused_params={} "
      "delay_all_reduce_named_params=[{}] param_to_hook_all_reduce={} optimizer_in_backward={} "
      "mixed_precision={}",
      options.init_sync, options.broadcast_buffers,
      options.forward_sync_buffers.value_or(options.broadcast_buffers), options.bucket_cap_mb.value_or(0),
      fmt::join(options.bucket_cap_mb_list, ", "), options.find_unused_parameters, options.static_graph,
      options.skip_all_reduce_unused_params, fmt::join(options.delay_all_reduce_named_params, ", "),
      options.param_to_hook_all_reduce, options.optimizer_in_backward != nullptr,
      text_of(options.mixed_precision));
}

modules::ModuleText text_of(const std::vector<modules::NamedTensor>& parameters,
                            const std::vector<modules::NamedTensor>& buffers,
                            const DistributedDataParallelOptions& options) {
  std::string lines;
  const auto add = [&](const char* kind, const modules::NamedTensor& item) {
    lines += modules::describe(kind, item) + (item.tensor.requires_grad() ? "\n" : ", no gradient\n");
  };
  for (const auto& item : parameters) add("parameter", item);
  for (const auto& item : buffers) add("buffer", item);
  return {.user = "DistributedDataParallel",
          .lines = lines + "options of DistributedDataParallel\t" + text_of(options) + "\n",
          .advice = "Build the same module with the same options on every rank"};
}

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

std::vector<modules::NamedTensor> some_parameters(const torch::nn::Module& module) {
  auto parameters = modules::distinct(module.named_parameters());
  const auto trained = std::ranges::any_of(
      parameters, [](const modules::NamedTensor& each) { return each.tensor.requires_grad(); });
  if (trained) return parameters;
  throw_error<ArgumentError>(
      "DistributedDataParallel: {} has no parameter that requires a gradient, so there is nothing to reduce; "
      "use it unwrapped",
      module.name());
}

}  // namespace

std::vector<modules::NamedTensor> without(std::vector<modules::NamedTensor> tensors,
                                          const std::vector<std::string>& names) {
  std::erase_if(tensors, [&](const modules::NamedTensor& each) {
    return std::ranges::find(names, each.name) != names.end();
  });
  return tensors;
}

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

DdpState::DdpState(const torch::nn::Module& module, const DistributedDataParallelOptions& options,
                   const bool& sync, std::source_location where)
    : module_(module),
      options_(options),
      group_(runtime::required_group(options.process_group, "DistributedDataParallel")),
      sync_buffers_(options.forward_sync_buffers.value_or(options.broadcast_buffers)),
      skips_found_unused_(options.skip_all_reduce_unused_params && !options.static_graph),
      where_(where) {
  auto parts = modules::tell_on_failure({group_}, "DistributedDataParallel", where,
                                        [this] { return look_at_arguments(); });
  start_equal(parts.trained);
  if (!parts.delayed.empty())
    delayed_ = std::make_unique<DelayedReduction>(parts.delayed, parts.trigger, group_, where_);
  if (!parts.trained.empty()) make_reducer(std::move(parts.trained), parts.limits, sync);
  watch_module();
  refuse_new_parameters();
}

// Throws ArgumentError.
DdpState::Parts DdpState::look_at_arguments() {
  check_options(options_);
  check_mixed_precision(options_);
  check_with_python(options_, comm::state_of(group_));
  Parts parts{.limits = limits_from(options_)};
  device_ = common_device(some_parameters(module_));
  const auto all = modules::distinct(module_.named_parameters());
  find_all(joined(all, modules::distinct(module_.named_buffers())), options_.params_and_buffers_to_ignore,
           "params_and_buffers_to_ignore");
  parts.trained = look_at_module();
  if (options_.mixed_precision &&
      std::ranges::any_of(parameters_, [](const auto& each) { return intercept::has_guard(each.tensor); })) {
    throw ArgumentError(
        "DistributedDataParallel: mixed_precision does not take parameters of parallelize_module(); use "
        "autocast, or convert the module before it");
  }
  parts.delayed =
      find_all(parameters_, options_.delay_all_reduce_named_params, "delay_all_reduce_named_params");
  if (!parts.delayed.empty()) {
    parts.trigger =
        find_all(all, {options_.param_to_hook_all_reduce}, "param_to_hook_all_reduce").front().tensor;
  } else if (parts.trained.empty()) {
    throw ArgumentError(
        "DistributedDataParallel: params_and_buffers_to_ignore leaves no parameter to reduce");
  }
  return parts;
}

std::vector<TrainedParameter> DdpState::look_at_module() {
  parameters_ = without(modules::distinct(module_.named_parameters()), options_.params_and_buffers_to_ignore);
  buffers_ = without(modules::distinct(module_.named_buffers()), options_.params_and_buffers_to_ignore);
  untrained_ = without(parameters_, options_.delay_all_reduce_named_params);
  auto trained = trained_parameters(module_, untrained_);
  std::erase_if(untrained_, [](const modules::NamedTensor& each) { return each.tensor.requires_grad(); });
  if (std::ranges::any_of(trained, &TrainedParameter::sparse))
    comm::refuse_with_python(comm::state_of(group_), "a sparse gradient", "use dense ones");
  return trained;
}

// At construction.
void DdpState::start_equal(const std::vector<TrainedParameter>& trained) const {
  const bool with_buffers = options_.broadcast_buffers || options_.forward_sync_buffers.has_value();
  const auto sent = with_buffers || sync_buffers_ ? joined(parameters_, buffers_) : parameters_;
  const bool with_python = comm::state_of(group_).info().with_python;
  const bool syncs = options_.init_sync && group_.size() > 1;
  if (syncs && with_python) verify_with_python(group_, trained, where_);
  if (group_.size() > 1 && !with_python) modules::check_same_on_all_ranks(group_, text_of_module(), where_);
  // All ranks throw: their modules are the same.
  modules::check_can_be_sent(group_, "DistributedDataParallel", sent, kOrIgnoreIt);
  if (!syncs) return;
  modules::broadcast_from(group_, 0, with_buffers ? sent : parameters_, where_);
  for (const auto& each : parameters_) optim::unmark_unaveraged(each.tensor);
}

modules::ModuleText DdpState::text_of_module(const std::string& more) const {
  const auto& ignored = options_.params_and_buffers_to_ignore;
  auto text = text_of(without(modules::distinct(module_.named_parameters()), ignored),
                      without(modules::distinct(module_.named_buffers()), ignored), options_);
  text.lines += more;
  return text;
}

void DdpState::make_reducer(std::vector<TrainedParameter> trained, const BucketLimits& limits,
                            const bool& sync) {
  const auto& mixed = options_.mixed_precision;
  if (mixed) precision_ = std::make_unique<PrecisionSwitch>(parameters_, buffers_, *mixed);
  reducer_ = std::make_shared<Reducer>(
      std::move(trained), group_,
      ReducerOptions{
          .limits = limits,
          .gradient_as_bucket_view = options_.gradient_as_bucket_view,
          .find_unused_parameters = options_.find_unused_parameters,
          .static_graph = options_.static_graph,
          .skip_all_reduce_unused_params = options_.skip_all_reduce_unused_params,
          .batched_grad_copy = options_.batched_grad_copy,
          .lazy_bucket_allocation = options_.lazy_bucket_allocation,
          .optimizer_in_backward = options_.optimizer_in_backward,
          .gradient_dtype = mixed ? mixed->param_dtype : std::nullopt,
          .after_reduction = mixed ? std::function<void()>([this] { precision_->raise(); }) : nullptr,
          .no_recovery = options_.optimizer_in_backward              ? "optimizer_in_backward"
                         : comm::state_of(group_).info().with_python ? "Python ranks"
                         : delayed_ == nullptr                       ? ""
                                                                     : "delay_all_reduce_named_params",
          .sync = &sync,
          .where = where_});
  watch_gradients();
  if (mixed) reducer_->register_comm_hook(reduce_in(mixed->reduce_dtype));
}

void DdpState::watch_gradients() {
  reducer_->watch_gradients(without(parameters_, options_.delay_all_reduce_named_params));
}

bool DdpState::will_sync_buffers() const {
  return sync_buffers_ && buffers_may_differ_ && !buffers_.empty() && group_.size() > 1;
}

// Collective. Returns the highest rank that is a candidate.
int DdpState::find_common_rank(bool candidate) const {
  const auto highest =
      at::full({1}, candidate ? group_.rank() : -1, at::TensorOptions().dtype(at::kInt).device(device_));
  group_.all_reduce(highest, ReduceOp::MAX, where_);
  const int rank = highest.item().toInt();
  if (rank < 0) {
    throw_error<Error>("rank {} of {}: DistributedDataParallel: no rank has data left in this join",
                       group_.rank(), group_.size());
  }
  return rank;
}

void DdpState::sync_buffers(bool in_join, bool has_data) {
  if (will_sync_buffers()) broadcast_buffers(in_join ? find_common_rank(has_data) : 0);
}

void DdpState::broadcast_buffers(int source) {
  // Not counted as changes in place: a second forward before backward is fine, because backward of a training
  // BatchNorm does not read its buffers. PyTorch: `_unsafe_preserve_version_counter`.
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions;
  for (const auto& [name, tensor] : buffers_) {
    if (tensor.is_inference()) continue;
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();  // shared with the tensor
    versions.emplace_back(counter, counter.current_version());
  }
  const auto restore = c10::make_scope_exit([&versions] {
    for (auto& [counter, version] : versions) counter.set_version(version);
  });
  modules::broadcast_from(group_, source, buffers_, where_);
}

void DdpState::sync_buffers() {
  if (sync_buffers_ && !buffers_.empty() && group_.size() > 1) broadcast_buffers(0);
}

// Collective. Throws DesyncError on all ranks if those without data cannot follow.
DdpState::Iteration DdpState::agree_on_iteration(bool has_data, bool reduces) const {
  const bool must_learn = !has_data && reducer_ && reducer_->in_first_static_step();
  enum Flag { kReduces, kHasNoData, kHasSyncedLayers, kMustLearn, kFlags };
  std::array<float, kFlags> here{};
  here[kReduces] = reduces ? 1 : 0;
  here[kHasNoData] = has_data ? 0 : 1;
  here[kHasSyncedLayers] = has_data && has_synced_layers_ ? 1 : 0;
  here[kMustLearn] = must_learn ? 1 : 0;
  const auto sums = at::from_blob(here.data(), {kFlags}, at::kFloat).to(device_, at::kFloat, false, true);
  group_.all_reduce(sums, ReduceOp::SUM, where_);
  const auto host = sums.to(at::kCPU);
  const auto any = [&](Flag flag) { return host[flag].item<float>() != 0; };
  if (any(kReduces) && any(kMustLearn)) {
    throw_error<DesyncError>(
        "rank {} of {}: DistributedDataParallel: {} no data for the first step of a static graph, so that "
        "the ranks cannot train in a join; give each rank at least one batch",
        group_.rank(), group_.size(), must_learn ? "this rank has" : "another rank has");
  }
  return {.reduces = any(kReduces), .announces = any(kHasNoData) && any(kHasSyncedLayers)};
}

void DdpState::prepare_for_forward(bool sync, bool in_join) {
  const bool reduces = sync && c10::GradMode::is_enabled();
  if (reducer_) {
    reducer_->end_listening();  // a forward that threw
    if (!in_join) reducer_->write_trace_if_complete();
    if (!reducer_->recover_if_failed() && reduces) reducer_->check_last_backward();
  }
  if (reduces) follow_changes(!in_join);
}

void DdpState::begin_join(const std::vector<nn::SyncedLayer>& synced) {
  follow_changes(false);  // so that ranks without any data follow, too
  const auto refuse = [](bool set, const char* name) {
    if (set) throw_error<ArgumentError>("DistributedDataParallel: join() does not support {}", name);
  };
  comm::refuse_with_python(comm::state_of(group_), "join()", "give all ranks the same number of batches");
  refuse(delayed_ != nullptr, "delay_all_reduce_named_params");
  refuse(skips_found_unused_, "skip_all_reduce_unused_params with find_unused_parameters");
  has_synced_layers_ = false;
  synced_buffers_.clear();
  for (const auto& layer : synced) {
    const auto group = runtime::group_or_default(layer.group, "SyncBatchNorm");
    if (!group || group->size() == 1) continue;
    if (&comm::state_of(*group) != &comm::state_of(group_)) {
      throw_error<ArgumentError>(
          "DistributedDataParallel: join() does not support {}, a SyncBatchNorm with another process group: "
          "ranks without data cannot follow its calls. Give both the same group",
          layer.name);
    }
    has_synced_layers_ = true;
    for (const auto& each : buffers_) {
      const auto is_this = [&](const at::Tensor& buffer) { return buffer.is_same(each.tensor); };
      if (std::ranges::any_of(layer.buffers, is_this)) synced_buffers_.push_back(each);
    }
  }
}

void DdpState::before_forward(bool sync, const std::optional<Joined>& in_join) {
  const bool training = c10::GradMode::is_enabled();
  if (delayed_) refuse_in_graph("DistributedDataParallel with delay_all_reduce_named_params", "leave it out");
  if (reducer_) begin_forward(training, sync, in_join);
  sync_buffers(in_join.has_value(), true);
  if (in_join && agree_on_iteration(true, training && sync && has_trained_).announces) {
    comm::begin_announcing(group_, device_);
  }
  if (precision_ && precision_->lower()) reducer_->renew_hooks();
}

void DdpState::begin_forward(bool training, bool sync, const std::optional<Joined>& in_join) {
  reducer_->enter_graph(in_join.has_value());
  reducer_->clock().begin_forward();
  if (training && sync) {
    reducer_->begin_listening();
    if (has_trained_) reducer_->begin_forward();
  }
  if (training && !sync) reducer_->begin_local_forward();
  const bool counts = in_join && in_join->notice && !in_join->options.divide_by_initial_world_size;
  reducer_->set_divisor(counts ? std::function<int()>([notice = *in_join->notice]() mutable {
    notice.work.wait();
    return notice.active.item().toInt();
  })
                               : nullptr);
  if (training || in_join) reducer_->rebuild_buckets_if_due();
}

void DdpState::after_forward(bool sync, const std::vector<at::Tensor>& outputs) {
  const bool training = c10::GradMode::is_enabled();
  if (precision_ && !training) precision_->raise();
  buffers_may_differ_ = training && sync;
  if (delayed_ && training) delayed_->prepare(sync);
  if (!reducer_) return;
  reducer_->end_listening();
  reducer_->clock().end_forward();
  if (training && sync && has_trained_) reducer_->expect_backward(outputs);
}

void DdpState::shadow_iteration() {
  if (reducer_) reducer_->rebuild_buckets_if_due();
  sync_buffers(true, false);
  const auto iteration = agree_on_iteration(false, false);
  buffers_may_differ_ = iteration.reduces;
  if (!reducer_) return;
  if (iteration.announces) {
    reducer_->shadow_announced_calls();
  } else if (iteration.reduces) {
    reducer_->shadow_backward();
  }
}

void DdpState::finish_join(bool is_last_joiner) {
  const int source = find_common_rank(is_last_joiner);
  modules::broadcast_from(group_, source, joined(parameters_, sync_buffers_ ? buffers_ : synced_buffers_),
                          where_);
  for (const auto& each : parameters_) optim::unmark_unaveraged(each.tensor);
}

}  // namespace lockstep::ddp
