// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/ddp_state.h"

#include <algorithm>
#include <array>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include "base/throw_error.h"
#include "comm/announced_calls.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "graphs/graph_phase.h"
#include "intercept/storage_guard.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "modules/python_ranks.h"
#include "optim/unaveraged.h"
#include "runtime/run.h"

namespace lockstep::ddp {
namespace {

// Divides after summing, as PyTorch does here.
CommHook reduce_in(std::optional<at::ScalarType> dtype) {
  return [dtype](GradBucket& bucket) {
    const auto buffer = dtype ? bucket.buffer().to(*dtype) : bucket.buffer();
    const comm::CallSite site(kGradients, static_cast<int>(bucket.index()));
    auto work = bucket.process_group().all_reduce_async(buffer);
    return BucketWork(std::move(work), buffer).then([ranks = bucket.process_group().size()](at::Tensor sum) {
      return sum.div_(ranks);
    });
  };
}

bool is_default(const ProcessGroup& group) {
  const auto* const run = runtime::current_run();
  return run != nullptr && &comm::state_of(run->group()) == &comm::state_of(group);
}

// Or there is none. Plain functions have no state.
bool is_plain_function(const CommHook& hook) {
  using Function = BucketWork (*)(GradBucket&);
  return !hook || hook.target<Function>() != nullptr;
}

}  // namespace

DdpState::DdpState(const torch::nn::Module& module, const DistributedDataParallelOptions& options,
                   const bool& sync, std::source_location where)
    : options_(options),
      group_(runtime::required_group(options.process_group, "DistributedDataParallel")),
      features_(features_of(options, group_)),
      where_(where),
      tensors_(module, options_),
      buffers_(tensors_, group_, options.forward_sync_buffers.value_or(options.broadcast_buffers), where),
      changes_(tensors_, buffers_, group_, features_, where) {
  begin(options_.init_sync, sync);
  if (group_.size() > 1) changes_.refuse_new_parameters();
}

void DdpState::begin(bool syncs, const bool& sync) {
  auto trained = modules::tell_on_failure({group_}, "DistributedDataParallel", where_,
                                          [this] { return look_at_arguments(); });
  start_equal(trained, syncs);
  if (!options_.delay_all_reduce_named_params.empty())
    delayed_ = std::make_unique<DelayedReduction>(tensors_.delayed(), tensors_.param_to_hook_all_reduce(),
                                                  group_, where_);
  if (!trained.empty()) make_reducer(std::move(trained), sync);
  watch_module();
}

std::vector<TrainedParameter> DdpState::look_at_arguments() {
  check_options(options_, features_, group_);
  device_ = tensors_.check();
  auto trained = look_at_module();
  if (options_.mixed_precision &&
      std::ranges::any_of(parameters(), [](const auto& each) { return intercept::has_guard(each.tensor); })) {
    throw ArgumentError(
        "DistributedDataParallel: mixed_precision does not take parameters of parallelize_module(); use "
        "autocast, or convert the module before it");
  }
  if (!tensors_.delayed().empty()) {
    tensors_.param_to_hook_all_reduce();
  } else if (trained.empty()) {
    throw ArgumentError(
        "DistributedDataParallel: params_and_buffers_to_ignore leaves no parameter to reduce");
  }
  return trained;
}

std::vector<TrainedParameter> DdpState::look_at_module() {
  auto trained = tensors_.look();
  if (std::ranges::any_of(trained, &TrainedParameter::sparse)) check_on(group_, Feature::sparse_gradient);
  return trained;
}

void DdpState::start_equal(const std::vector<TrainedParameter>& trained, bool syncs) const {
  const bool with_buffers = options_.broadcast_buffers || options_.forward_sync_buffers.has_value();
  const auto sent =
      with_buffers || buffers_.is_on() ? joined(parameters(), tensors_.buffers()) : parameters();
  syncs = syncs && group_.size() > 1;
  if (!comm::has_python_ranks(group_)) {
    if (group_.size() > 1) modules::check_same_on_all_ranks(group_, tensors_.text(), where_);
  } else if (syncs) {
    std::vector<modules::NamedTensor> named;
    for (const auto& each : trained) named.push_back({each.name, each.tensor});
    modules::verify_with_python(group_, named, where_);
  }
  // All ranks throw: their modules are the same.
  modules::check_can_be_sent(group_, "DistributedDataParallel", sent, kOrIgnoreIt);
  if (!syncs) return;
  const comm::CallSite site(where_, "parameters and buffers");
  modules::broadcast_from(group_, 0, with_buffers ? sent : parameters(), where_);
  for (const auto& each : parameters()) optim::unmark_unaveraged(each.tensor);
}

void DdpState::make_reducer(std::vector<TrainedParameter> trained, const bool& sync) {
  const auto& mixed = options_.mixed_precision;
  if (mixed) precision_ = std::make_unique<PrecisionSwitch>(parameters(), tensors_.buffers(), *mixed);
  ReducerOptions options{options_};
  if (mixed) options.after_reduction = [this] { precision_->raise(); };
  options.sync = &sync;
  options.where = where_;
  reducer_ = std::make_shared<Reducer>(std::move(trained), group_, std::move(options));
  reducer_->watch_gradients(tensors_.undelayed());
  if (mixed) reducer_->register_comm_hook(reduce_in(mixed->reduce_dtype));
}

void DdpState::register_comm_hook(CommHook hook) {
  check(features_, Feature::comm_hook, group_);
  reducer_->register_comm_hook(hook);
  hook_ = std::move(hook);
}

void DdpState::require_can_rejoin(bool in_join) const {
  check(features_, Feature::elastic_run, group_);
  if (is_plain_function(hook_) && !in_join && is_default(group_)) return;
  throw_error<ArgumentError>(
      "DistributedDataParallel: an elastic run does not support {}",
      !is_default(group_) ? "another process group than the default one; leave out process_group"
      : in_join           ? "join() around it; make the Join inside of the function that it calls"
                          : "a communication hook that may have a state, which no rank could restore; use "
                            "a plain function such as bf16_compress_hook, or none");
}

void DdpState::rejoin(const bool& sync, bool in_join) {
  modules::tell_on_failure({group_}, "DistributedDataParallel", where_, [&] { require_can_rejoin(in_join); });
  can_train_ = false;
  drop_step();
  begin(/*syncs=*/false, sync);
  if (hook_ && reducer_) reducer_->register_comm_hook(hook_);
  can_train_ = true;
}

void DdpState::require_can_verify() const {
  check(features_, Feature::verified_step, group_);
  check_on(group_, Feature::verified_step);
  if (!options_.params_and_buffers_to_ignore.empty())
    check({Feature::ignored_tensors}, Feature::verified_step, group_);
  if (hook_.target<PostLocalSGD>() != nullptr) check({Feature::local_sgd}, Feature::verified_step, group_);
  if (std::ranges::any_of(reducer_->parameters(), &TrainedParameter::sparse))
    check({Feature::sparse_gradient}, Feature::verified_step, group_);
}

// Before the new reducer: gradients and hooks keep memory and nodes of the graph.
void DdpState::drop_step() {
  if (precision_) precision_->raise();
  for (const auto& each : parameters()) {
    each.tensor.mutable_grad().reset();
    optim::unmark_unaveraged(each.tensor);
  }
  delayed_.reset();
  reducer_.reset();
  precision_.reset();
  buffers_.set_may_differ(true);
  has_trained_ = true;
  converted_ = false;
}

void DdpState::sync_buffers() {
  if (buffers_.has_any()) buffers_.broadcast(0);
}

void DdpState::sync_buffers_if_due() {
  if (!buffers_.is_due()) return;
  buffers_.broadcast(0);
  buffers_.set_may_differ(false);
}

void DdpState::prepare_for_forward(bool sync, bool in_join) {
  if (!can_train_) {
    throw_error<Error>("{}: rejoin() has failed, so the ranks cannot continue; end the run",
                       ddp_on_rank(group_));
  }
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
  check_on(group_, Feature::join);
  check(features_, Feature::join, group_);
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
    for (const auto& each : tensors_.buffers()) {
      const auto is_this = [&](const at::Tensor& buffer) { return buffer.is_same(each.tensor); };
      if (std::ranges::any_of(layer.buffers, is_this)) synced_buffers_.push_back(each);
    }
  }
}

// Collective. Returns the highest rank that is a candidate.
int DdpState::find_common_rank(bool candidate) const {
  const auto highest =
      at::full({1}, candidate ? group_.rank() : -1, at::TensorOptions().dtype(at::kInt).device(device_));
  const comm::CallSite site(where_, "a rank with data, in Join");
  group_.all_reduce(highest, ReduceOp::MAX, where_);
  const int rank = highest.item().toInt();
  if (rank < 0) {
    throw_error<Error>(comm::reporter_of(group_), comm::about(group_),
                       "DistributedDataParallel: no rank has data left in this join");
  }
  return rank;
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
  const comm::CallSite site(where_, "which calls an iteration makes");
  group_.all_reduce(sums, ReduceOp::SUM, where_);
  const auto host = sums.to(at::kCPU);
  const auto any = [&](Flag flag) { return host[flag].item<float>() != 0; };
  if (any(kReduces) && any(kMustLearn)) {
    throw_error<DesyncError>(
        comm::reporter_of(group_), comm::about(group_),
        "DistributedDataParallel: {} no data for the first step of a static graph, so that "
        "the ranks cannot train in a join; give each rank at least one batch",
        must_learn ? "this rank has" : "another rank has");
  }
  return {.reduces = any(kReduces), .announces = any(kHasNoData) && any(kHasSyncedLayers)};
}

void DdpState::before_forward(bool sync, const std::optional<Joined>& in_join) {
  const bool training = c10::GradMode::is_enabled();
  if (graph_phase() != GraphPhase::none) {
    check(features_, Feature::graphed_step, group_);
    if (in_join) check({Feature::join}, Feature::graphed_step, group_);
  }
  if (reducer_) begin_forward(training, sync, in_join);
  if (buffers_.is_due()) buffers_.broadcast(in_join ? find_common_rank(true) : 0);
  if (in_join && agree_on_iteration(true, training && sync && has_trained_).announces) {
    comm::begin_announcing(group_, device_);
  }
  if (precision_ && precision_->lower()) reducer_->renew_hooks();
}

void DdpState::begin_forward(bool training, bool sync, const std::optional<Joined>& in_join) {
  reducer_->enter_graph();
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
  buffers_.set_may_differ(training && sync);
  if (delayed_ && training) delayed_->prepare(sync);
  if (!reducer_) return;
  reducer_->end_listening();
  reducer_->clock().end_forward(training);
  if (training && sync && has_trained_) reducer_->expect_backward(outputs);
}

void DdpState::shadow_iteration() {
  if (reducer_) reducer_->rebuild_buckets_if_due();
  if (buffers_.is_due()) buffers_.broadcast(find_common_rank(false));
  const auto iteration = agree_on_iteration(false, false);
  buffers_.set_may_differ(iteration.reduces);
  if (!reducer_) return;
  if (iteration.announces) {
    reducer_->shadow_announced_calls();
  } else if (iteration.reduces) {
    reducer_->shadow_backward();
  }
}

void DdpState::finish_join(bool is_last_joiner) {
  const int source = find_common_rank(is_last_joiner);
  const auto& buffers = buffers_.is_on() ? tensors_.buffers() : synced_buffers_;
  const comm::CallSite site(where_, "parameters and buffers");
  modules::broadcast_from(group_, source, joined(parameters(), buffers), where_);
  for (const auto& each : parameters()) optim::unmark_unaveraged(each.tensor);
}

// `in_step`: a forward of all ranks that have not changed follows, with its backward.
void DdpState::follow_changes(bool in_step) {
  if (changes_.are_none(has_own_types())) return;
  if (precision_) precision_->raise();
  const auto converted = reducer_ && !precision_ ? reducer_->parameter_without_hook() : std::nullopt;
  const auto changes = changes_.find(has_own_types(), converted);
  if (!changes.empty()) {
    changes_.agree_on(changes, {.reducer = reducer_.get(), .follows = in_step, .reduces = has_trained_});
    changes_.check_can_follow(changes, reducer_.get());
    begin_anew(std::ranges::any_of(changes, &modules::ModuleChange::is_conversion));
  }
  watch_module();
}

// Mixed precision converts the parameters itself, with other nodes.
void DdpState::watch_module() {
  changes_.watch(reducer_ && !precision_ ? reducer_->accumulators() : modules::ModuleWatch::Accumulators());
}

void DdpState::begin_anew(bool converted) {
  auto trained = look_at_module();
  buffers_.set_may_differ(true);
  modules::check_can_be_sent(group_, "DistributedDataParallel",
                             buffers_.is_on() ? joined(parameters(), tensors_.buffers()) : parameters(),
                             kOrIgnoreIt);
  converted_ = converted_ || converted;
  if (reducer_) {
    reducer_->average_leaving(trained);
    reducer_->watch_gradients(tensors_.undelayed());
  }
  has_trained_ = !trained.empty();
  if (!has_trained_) return;
  device_ = common_device(parameters());
  if (precision_)
    precision_ =
        std::make_unique<PrecisionSwitch>(parameters(), tensors_.buffers(), *options_.mixed_precision);
  const bool has_hooks = precision_ || !reducer_->parameter_without_hook();
  if (!std::exchange(converted_, false) && has_hooks && reducer_->has_same(trained)) return;
  reducer_->rebuild(std::move(trained));
}

bool DdpState::has_averaged_gradients() const {
  const auto is_averaged = [](const modules::NamedTensor& each) {
    return !each.tensor.requires_grad() || !each.tensor.grad().defined();
  };
  // Unfrozen since the reducer was built.
  if (!std::ranges::all_of(tensors_.untrained(), is_averaged) || changes_.has_new_parameters()) return false;
  return !reducer_ || reducer_->has_averaged_gradients();
}

}  // namespace lockstep::ddp
