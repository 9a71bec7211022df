// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Stream.h>

#include <lockstep/base/mutex.h>

#include "ddp/autograd_hooks.h"
#include "ddp/failed_step.h"
#include "ddp/join_shadow.h"
#include "ddp/local_gradients.h"
#include "ddp/step_history.h"
#include "modules/module_watch.h"

namespace lockstep::ddp {

// Note [The reducer]
//
// Averages gradients across the group while backward runs. Follows c10d::Reducer: the same buckets in the
// same order and the same arithmetic, hence the same bits.
//
//     backward computes    p3     p2        p1     p0            a hook runs when a gradient is final
//                           |      |         |      |            divided by the number of ranks
//     flat buckets        [ p3  | p2 ]     [ p1  | p0 ]          in the order of the first backward
//                               |               |                full, and all before it started:
//     all-reduce             sum 0 ---------> sum 1              overlaps with the rest of backward
//                               |               |
//     end of backward      .grad of p3, p2   .grad of p1, p0     waits for the sums, hands them over
//
// With gradient_as_bucket_view, .grad lies in the bucket and gets the sum without a copy. A bucket lies in
// memory of the backend (allocateTensor()), which shm reduces in place. Another arithmetic than division and
// all-reduce is a communication hook.
//
// Two state machines. A step, from one reduced backward to the next (Step::Phase):
//
//     idle ---------> forward ---------> awaiting ---------> backward ---------> finishing ---> idle
//     no reduced      a forward runs     it has returned     autograd runs       waits for
//     backward is                            ^               |        ^          reductions
//     expected                               +-- no gradient-+        |
//                                                            v        |
//                                                            incomplete: gradients are missing
//
// A backward that throws leaves `backward` or `finishing` behind, a forward that throws leaves `forward`. The
// next forward then calls recover_if_failed(), which returns to idle. `aborted`: another rank reported a
// failed step in its gradients (note [Failed steps]).
//
// Threads: forward's thread calls the public functions; autograd's threads call on_gradient_ready() and
// on_backward_end(). `mutex_`, which only this class locks, separates them. No thread of its own. The state of the
// step is guarded by it; the parts are used without it too, by the functions that forward's thread calls while no
// backward runs.
//
// The parts: Buckets is the memory, StepCalls makes the calls of a step, FailedStep ends those of a step that
// threw, JoinShadow makes those of the other ranks, StepHistory knows the order of gradients, LocalGradients
// what no step has averaged. This class keeps the order and the phases.
//
// Invariants:
// - Reductions begin in the order of the buckets on every rank, whatever the order of gradients.
// - Each reduction begins once a step.
// - Buckets change only in `forward`, before the module runs.

class Reducer {
 public:
  Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, ReducerOptions options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Each forward calls the next five in this order; enter_graph() may stand before begin_forward().

  // Writes the trace if it is complete; a collective call.
  void write_trace_if_complete();
  // If an exception ended the last forward or backward, completes its calls so that the ranks can continue,
  // and returns true. Throws Error if they cannot.
  bool recover_if_failed();
  // Throws Error naming the parameters that took no part in the last backward, if it is incomplete.
  void check_last_backward();
  void begin_forward();
  // Once, when the order of gradients is known; a collective call.
  void rebuild_buckets_if_due();

  // See BucketOrder.
  std::vector<std::int64_t> gradient_order() const {
    const MutexLock lock(mutex_);
    return history_.order();
  }
  void restore_gradient_order(std::vector<std::int64_t> order) {
    const MutexLock lock(mutex_);
    history_.restore_order(std::move(order));
  }

  // Notices gradients of these parameters that no hook sees, because a parameter was frozen or has been
  // converted since. Again after each change of the module.
  void watch_gradients(std::vector<modules::NamedTensor> parameters);

  // A forward whose backward is not reduced, by no_sync().
  void begin_local_forward();

  // When the module has changed, see note [Changes of the module].

  // Between these two, in a forward that will be reduced, calls on the group end if a rank reports a change.
  // The first throws DesyncError if one has.
  void begin_listening() {
    abort_.begin_forward();
    abort_.throw_if_changed();
  }
  void end_listening() const { abort_.end_listening(); }
  // How the ranks learn of a change on some of them.
  enum class ChangeNews {
    on_host,       // from the node-local group
    in_gradients,  // as of a failed step, see note [Failed steps]; costs the calls of a step
    by_a_call      // from a call that only they make
  };
  ChangeNews change_news();
  // Before begin_forward(), instead of the step's calls: reports a change on_host or in_gradients. Returns
  // [rank] = its change, empty for ranks without one. If all have one, end_change() follows.
  std::vector<std::string> exchange_changes(const std::string& change);
  void end_change() { abort_.end_step(); }
  // Instead of both, where no rank can follow a change: ends the step of the other ranks of this host.
  void refuse_change(const std::string& change) const { abort_.abort_for_change(change); }
  bool has_same(const std::vector<TrainedParameter>& parameters) const;
  // The nodes with the hooks of the parameters that require gradients.
  modules::ModuleWatch::Accumulators accumulators() const;
  // A parameter that has been converted since: its gradients have no hook. Not in mixed precision.
  std::optional<std::string> parameter_without_hook() const;
  // Throws ArgumentError if a registered communication hook may depend on the present buckets.
  void check_hook_can_follow() const;
  // See LocalGradients. Collective.
  void average_leaving(const std::vector<TrainedParameter>& parameters);
  // Begins anew with these parameters, which keep their gradients.
  void rebuild(std::vector<TrainedParameter> parameters);
  // The same parameters, of which `tensors` stand for those that have changed, until the result is destroyed.
  [[nodiscard]] std::shared_ptr<void> stand_in(const std::function<at::Tensor(std::size_t)>& tensor) {
    return buckets_.stand_in(tensor);
  }

  // Ends begin_forward(). `outputs`: the tensors that forward returned.
  void expect_backward(const std::vector<at::Tensor>& outputs);
  // Whether on_backward_begin() must be called when backward passes forward's outputs.
  bool watches_outputs() const { return options_.static_graph || options_.find_unused_parameters; }
  void on_backward_begin();

  // After parameters have changed their type, and with it their node in the graph.
  void renew_hooks();
  // Before a forward. Throws Error if a GraphedStep would capture it and cannot.
  void enter_graph();

  void register_comm_hook(CommHook hook);
  // See Buckets.
  void set_divisor(std::function<int()> divisor) { buckets_.set_divisor(std::move(divisor)); }

  // For verified steps, each until the result is destroyed: `observer` sees each bucket before its reduction starts;
  // backward passes are replays, whose gradients nothing notes.
  [[nodiscard]] std::shared_ptr<void> observe(StepCalls::Observer observer) {
    calls_.set_observer(std::move(observer));
    return {nullptr, [this](void*) { calls_.set_observer(nullptr); }};
  }
  [[nodiscard]] std::shared_ptr<void> replay() {
    is_replaying_ = true;
    return {nullptr, [this](void*) { is_replaying_ = false; }};
  }
  bool is_replaying() const { return is_replaying_; }
  // See Buckets.
  at::Tensor divided(const at::Tensor& gradient, Division division) {
    return buckets_.divided(gradient, division);
  }

  // In a join, on a rank without data: makes the calls of a backward, or of an iteration as they are
  // announced. See JoinShadow.
  void shadow_backward();
  void shadow_announced_calls();
  // Whether the step that shows a static graph has still to come.
  bool in_first_static_step() const { return history_.in_first_static_step(); }

  const std::vector<Bucket>& buckets() const { return buckets_.all(); }
  const std::vector<TrainedParameter>& parameters() const { return buckets_.parameters(); }
  tracing::StepClock& clock() { return calls_.clock(); }
  const tracing::StepClock& clock() const { return calls_.clock(); }
  tracing::StepTrace& trace() { return calls_.trace(); }
  const std::vector<std::int64_t>& arrived_last() const { return arrived_last_; }
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const {
    return buckets_.optimizers();
  }
  // False during a reduced backward, after one that was not completed, and if a gradient was not reduced.
  bool has_averaged_gradients() const;

 private:
  enum class Phase : std::uint8_t { idle, forward, awaiting, backward, incomplete, finishing, aborted };

  struct Step {
    Phase phase = Phase::idle;
    Phase before_forward = Phase::idle;  // in `forward`: the phase that it interrupts
    std::size_t hook_calls = 0;
    std::size_t ready_count = 0;
    std::vector<bool> ready = {};  // [parameter]
  };

  void enter(Phase next) LOCKSTEP_REQUIRES(mutex_);  // throws Error unless it may follow
  void note_claim() LOCKSTEP_REQUIRES(mutex_);
  bool in(Phase phase) const LOCKSTEP_REQUIRES(mutex_) { return step_.phase == phase; }

  // From hooks to buckets.
  void begin_backward() LOCKSTEP_REQUIRES(mutex_);
  void on_gradient_ready(std::size_t parameter);
  void mark_ready(std::size_t parameter) LOCKSTEP_REQUIRES(mutex_);
  void check_first_gradient(std::size_t parameter) const LOCKSTEP_REQUIRES(mutex_);
  void on_backward_end();
  void reduce_first_static_step() LOCKSTEP_REQUIRES(mutex_);
  void finish_backward() LOCKSTEP_REQUIRES(mutex_);
  void end_step() LOCKSTEP_REQUIRES(mutex_);

  ProcessGroup group_;
  ReducerOptions options_;
  std::vector<std::int64_t> arrived_last_;

  mutable Mutex mutex_;
  Buckets buckets_;
  StepCalls calls_;
  modules::StepAbort& abort_ = calls_.abort();
  FailedStep failed_;
  JoinShadow shadow_;
  StepHistory history_;
  LocalGradients local_ LOCKSTEP_GUARDED_BY(mutex_);
  Step step_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<Claim> claim_{Claim::none};  // of step_, for reducers of the same parameters
  std::atomic<bool> is_replaying_ = false;
  std::optional<c10::Stream> hooks_stream_;  // on which the hooks were made for a graph
  std::vector<modules::NamedTensor> watched_ LOCKSTEP_GUARDED_BY(mutex_);
  // Last: destroyed before what they use.
  std::unique_ptr<GradientHooks> hooks_;
  std::unique_ptr<UnhookedGradients> unhooked_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::ddp
