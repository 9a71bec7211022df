// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/reducer.h"

#include <algorithm>
#include <array>

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "device/libtorch_versions.h"
#include "graphs/graph_phase.h"
#include "intercept/nested_backward.h"

namespace lockstep::ddp {

Reducer::Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, ReducerOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      arrived_last_(static_cast<std::size_t>(group_.size()), 0),
      buckets_(std::move(parameters), group_, options_),
      calls_(buckets_, group_, options_),
      failed_(calls_),
      shadow_(calls_, failed_),
      history_(buckets_, group_, options_),
      local_(buckets_, group_, options_, [this](auto function) {
        torch::autograd::Engine::get_default_engine().queue_callback([this, function] {
          const MutexLock lock(mutex_);
          (local_.*function)();
          note_claim();
        });
      }) {
  renew_hooks();
  buckets_.lay_out();
}

void Reducer::enter(Phase next) {
  using enum Phase;
  constexpr std::array kNames{"idle",       "forward",   "awaiting", "backward",
                              "incomplete", "finishing", "aborted"};
  constexpr auto phases = [](auto... all) { return ((1U << static_cast<unsigned>(all)) | ...); };
  constexpr std::array kNext{
      phases(forward, awaiting),                      // after idle
      phases(idle, awaiting),                         // after forward
      phases(forward, awaiting, backward),            // after awaiting
      phases(idle, awaiting, incomplete, finishing),  // after backward
      phases(backward),                               // after incomplete
      phases(idle, aborted),                          // after finishing
      phases(idle),                                   // after aborted
  };
  if ((kNext[static_cast<std::size_t>(step_.phase)] & phases(next)) == 0) {
    throw_error<Error>("{}: internal error: phase {} cannot follow phase {}", ddp_on_rank(group_),
                       kNames[static_cast<std::size_t>(next)], kNames[static_cast<std::size_t>(step_.phase)]);
  }
  step_.phase = next;
  note_claim();
}

void Reducer::note_claim() {
  const bool reduces = !in(Phase::idle) && (!in(Phase::forward) || step_.before_forward == Phase::awaiting);
  claim_ = reduces ? Claim::reduced : local_.are_expected() ? Claim::local : Claim::none;
}

// The host's part of a step runs only while a GraphedStep captures it.
void Reducer::enter_graph() {
  const auto phase = graph_phase();
  if (phase == GraphPhase::none) return;
  if (phase == GraphPhase::capture && history_.is_rebuild_due())
    refuse_in_graph("DistributedDataParallel with buckets that are rebuilt in this step", "raise warmup");
  if (phase != GraphPhase::warm_up) return;
  // The hooks' nodes run on the stream on which they were made. It must be the captured one, which the
  // warm-up already uses.
  const auto device = buckets_.device();
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (hooks_stream_ == stream) return;
  renew_hooks();
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    if (hooks_->node(i) == nullptr) continue;
    const auto made_on = hooks_->node(i)->stream();
    if (!made_on || *made_on == stream) continue;
    throw_error<Error>(
        "{}: a tensor of an earlier forward is alive, such as a loss or an output, and keeps the node that "
        "accumulates the gradient of {} on a stream that GraphedStep does not capture: drop it before the "
        "first call of the step",
        ddp_on_rank(group_), parameters()[i].name);
  }
  hooks_stream_ = stream;
}

void Reducer::renew_hooks() {
  hooks_.reset();  // first: a tensor keeps the node of its gradient while anything holds it
  hooks_ = std::make_unique<GradientHooks>(
      parameters(), [this](std::size_t parameter) { on_gradient_ready(parameter); },
      [this] {
        const bool is_local = is_replaying_ || (options_.sync != nullptr && !*options_.sync);
        return is_local ? std::max(claim_.load(), Claim::local) : claim_.load();
      });
}

void Reducer::watch_gradients(std::vector<modules::NamedTensor> parameters) {
  const MutexLock lock(mutex_);
  unhooked_.reset();
  watched_ = std::move(parameters);
  unhooked_ = std::make_unique<UnhookedGradients>(watched_, [this](std::size_t parameter) {
    const MutexLock lock_in_backward(mutex_);
    if (!is_replaying_) local_.add_unhooked(watched_[parameter]);
  });
}

bool Reducer::has_averaged_gradients() const {
  const MutexLock lock(mutex_);
  return (in(Phase::idle) || in(Phase::forward) || in(Phase::awaiting)) && !local_.exist();
}

void Reducer::register_comm_hook(CommHook hook) {
  const MutexLock lock(mutex_);
  if (calls_.hook())
    throw ArgumentError(ddp_on_rank(group_) + ": a communication hook is registered already");
  if (!hook) throw ArgumentError(ddp_on_rank(group_) + ": the communication hook is empty");
  if (!in(Phase::idle) && !in(Phase::forward)) {
    throw ArgumentError(ddp_on_rank(group_) + ": register the communication hook before the first forward");
  }
  calls_.set_hook(std::move(hook));
  const bool had_no_buckets = buckets_.has_nothing_to_reduce();
  buckets_.leave_division_to_hook();
  if (had_no_buckets) buckets_.lay_out();
}

void Reducer::begin_local_forward() {
  const MutexLock lock(mutex_);
  local_.begin_local_forward();
  note_claim();
}

void Reducer::begin_forward() {
  const MutexLock lock(mutex_);
  local_.begin_reduced_forward();
  step_.before_forward = step_.phase;
  enter(Phase::forward);
}

void Reducer::expect_backward(const std::vector<at::Tensor>& outputs) {
  const MutexLock lock(mutex_);
  enter(Phase::awaiting);
  step_.hook_calls = 0;
  step_.ready_count = 0;
  step_.ready.assign(parameters().size(), false);
  history_.begin_backward(outputs, *hooks_);
  calls_.begin(history_.unused());
}

void Reducer::on_backward_begin() {
  const MutexLock lock(mutex_);
  const CallerPlace place(options_.where);
  begin_backward();
}

void Reducer::begin_backward() {
  if (!in(Phase::awaiting) && !in(Phase::incomplete)) return;
  enter(Phase::backward);
  intercept::in_outer_backward([this] {
    intercept::note_wrapped_backward();
    torch::autograd::Engine::get_default_engine().queue_callback([this] { on_backward_end(); });
  });
}

void Reducer::on_gradient_ready(std::size_t parameter) {
  if (is_replaying_) return;
  const MutexLock lock(mutex_);
  const CallerPlace place(options_.where);
  if ((options_.finds_unused() || in_first_static_step()) &&
      parameters()[parameter].tensor.mutable_grad().defined()) {
    calls_.used().mark(parameter);
  }
  // The new forward has thrown, and this backward belongs to the one before.
  if (in(Phase::forward) && step_.before_forward == Phase::awaiting) enter(Phase::awaiting);
  if (in(Phase::idle) || in(Phase::forward)) {
    local_.add(parameter, hooks_->claim_of_others(parameter));
    return;
  }
  begin_backward();
  if (step_.hook_calls++ == 0 && !in_first_static_step())
    for (const auto unused : history_.unused()) mark_ready(unused);
  if (!history_.note_hook_call(parameter)) return;
  history_.note_gradient(parameter);
  mark_ready(parameter);
}

void Reducer::check_first_gradient(std::size_t parameter) const {
  if (!step_.ready[parameter]) return;
  throw_error<Error>(
      "{}: the gradient of {} became ready a second time before the backward was finished. Either backward "
      "was called twice on parts of one forward: sum the losses and call it once; or a module's parameters "
      "are used by several re-entrant backward passes (checkpoint): set static_graph if the graph is always "
      "the same{}",
      ddp_on_rank(group_), parameters()[parameter].name,
      options_.finds_unused()
          ? "; or forward() returned its tensors in a type that hides them: see lockstep::TensorVisitor"
          : "");
}

void Reducer::mark_ready(std::size_t parameter) {
  check_first_gradient(parameter);
  step_.ready[parameter] = true;
  ++step_.ready_count;
  if (buckets_.copy_in(parameter)) calls_.start_full();
}

void Reducer::on_backward_end() {
  const MutexLock lock(mutex_);
  const CallerPlace place(options_.where);
  if (!in(Phase::backward)) return;
  if (step_.hook_calls == 0) {
    enter(Phase::awaiting);
    return;
  }
  if (in_first_static_step()) {
    reduce_first_static_step();
  } else if (step_.ready_count < parameters().size()) {
    enter(Phase::incomplete);  // the next forward throws, as in PyTorch
    return;
  }
  finish_backward();
}

// Only the end of the first backward of a static graph shows how often each parameter's hook is called.
void Reducer::reduce_first_static_step() {
  if (!buckets_.all().empty()) calls_.reduce_used();
  history_.find_unused();
  for (std::size_t i = 0; i < parameters().size(); ++i) mark_ready(i);
}

void Reducer::finish_backward() {
  const auto listening = abort_.listen();
  enter(Phase::finishing);
  clock().end_gradients();
  const bool may_have_failed = calls_.wait(StepCalls::Results::deliver, failed_.reporting_bucket());
  abort_.throw_if_aborted();
  if (may_have_failed) {
    const auto reasons = abort_.exchange_reasons("");
    if (!reasons.empty()) enter(Phase::aborted);
    abort_.throw_if_any(reasons);
  }
  end_step();
}

void Reducer::end_step() {
  abort_.end_step();
  if (options_.after_reduction) options_.after_reduction();
  clock().end_step();
  if (trace().is_on()) {
    using Track = tracing::StepTrace::Track;
    trace().add(Track::compute, "forward", clock().forward_begin(), clock().forward_end());
    trace().add(Track::compute, "backward", clock().forward_end(), clock().gradients_end());
    trace().add(Track::compute, "waiting for reductions", clock().gradients_end(),
                tracing::StepTrace::Clock::now());
    trace().end_step();
  }
  if (const int last = abort_.last_to_issue(abort_.last_call()); last >= 0 && !buckets_.all().empty()) {
    ++arrived_last_[static_cast<std::size_t>(last)];
  }
  history_.end_step();
  local_.end_reduced_step();
  enter(Phase::idle);
}

void Reducer::write_trace_if_complete() {
  const MutexLock lock(mutex_);
  if (trace().is_complete()) trace().write(group_, options_.where);
}

void Reducer::rebuild_buckets_if_due() {
  const MutexLock lock(mutex_);
  if (!history_.is_rebuild_due()) return;
  history_.end_rebuild();
  // Hidden from a GraphedStep that warms up and compares this step with the next.
  std::optional<at::DisableRecordFunctionGuard> unseen;
  if (graph_phase() != GraphPhase::none) unseen.emplace();
  if (!buckets_.has_nothing_to_reduce()) buckets_.lay_out(history_.plan());
}

bool Reducer::recover_if_failed() {
  const MutexLock lock(mutex_);
  const bool forward_failed = in(Phase::forward);
  if (forward_failed) {
    calls_.begin(history_.unused());                    // none of the step's calls has been made
    if (!abort_.is_local() && !failed_.can_report()) {  // as in PyTorch, this forward has had no effect
      enter(step_.before_forward);
      return false;
    }
  }
  const bool others_know = in(Phase::aborted);
  if (!forward_failed && !in(Phase::backward) && !in(Phase::finishing) && !others_know) return false;
  if (!others_know) failed_.check_recoverable();
  enter(Phase::idle);
  if (options_.after_reduction) options_.after_reduction();
  if (buckets_.has_nothing_to_reduce()) return true;
  if (!others_know) failed_.recover(in_first_static_step());
  abort_.end_step();
  buckets_.zero();
  return true;
}

void Reducer::check_last_backward() {
  const MutexLock lock(mutex_);
  if (!in(Phase::incomplete)) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters().size(); ++i)
    if (!step_.ready[i]) names.push_back(parameters()[i].name);
  failed_.throw_incomplete(fmt::format("{}", fmt::join(names, ", ")), in_first_static_step());
}

void Reducer::shadow_backward() {
  const MutexLock lock(mutex_);
  calls_.begin(history_.unused());
  shadow_.make_calls();
  history_.learn_order_of_construction();
}

void Reducer::shadow_announced_calls() {
  const MutexLock lock(mutex_);
  calls_.begin(history_.unused());
  shadow_.make_announced_calls([this] { history_.learn_order_of_construction(); });
}

Reducer::ChangeNews Reducer::change_news() {
  const MutexLock lock(mutex_);
  if (abort_.is_local()) return ChangeNews::on_host;
  calls_.begin(history_.unused());
  return failed_.can_report() ? ChangeNews::in_gradients : ChangeNews::by_a_call;
}

std::vector<std::string> Reducer::exchange_changes(const std::string& change) {
  if (abort_.is_local()) return abort_.exchange_changes(change);
  const MutexLock lock(mutex_);
  calls_.begin(history_.unused());
  auto changes = failed_.report_failure(change, in_first_static_step());
  changes.resize(static_cast<std::size_t>(group_.size()));
  return changes;
}

bool Reducer::has_same(const std::vector<TrainedParameter>& parameters) const {
  return std::ranges::equal(buckets_.parameters(), parameters, [](const auto& one, const auto& other) {
    return one.tensor.is_same(other.tensor);
  });
}

modules::ModuleWatch::Accumulators Reducer::accumulators() const {
  modules::ModuleWatch::Accumulators accumulators;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const auto& tensor = parameters()[i].tensor;
    if (tensor.requires_grad()) accumulators.emplace(tensor.unsafeGetTensorImpl(), hooks_->node(i));
  }
  return accumulators;
}

std::optional<std::string> Reducer::parameter_without_hook() const {
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const auto& tensor = parameters()[i].tensor;
    const auto* const node = hooks_->node(i);
    if (tensor.requires_grad() && (node == nullptr || libtorch::accumulator_of(tensor) != node))
      return parameters()[i].name;
  }
  return std::nullopt;
}

void Reducer::check_hook_can_follow() const {
  using Function = BucketWork (*)(GradBucket&);
  const auto& hook = calls_.hook();
  if (!hook || options_.after_reduction || hook.target<Function>() != nullptr) return;
  throw ArgumentError(
      "A communication hook is registered, which may keep a state for each bucket; wrap the module anew "
      "after the "
      "change");
}

void Reducer::average_leaving(const std::vector<TrainedParameter>& parameters) {
  const MutexLock lock(mutex_);
  local_.average_leaving(parameters);
}

void Reducer::rebuild(std::vector<TrainedParameter> parameters) {
  const MutexLock lock(mutex_);
  local_.replace_parameters(parameters);
  buckets_.replace_parameters(std::move(parameters));
  calls_.forget_used();
  history_.forget();
  step_ = {};
  claim_ = Claim::none;
  hooks_stream_.reset();
  renew_hooks();
  buckets_.lay_out();
}

}  // namespace lockstep::ddp
