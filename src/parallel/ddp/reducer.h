// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/comm_hooks.h>

#include "ddp/autograd_hooks.h"
#include "ddp/bucket.h"
#include "modules/module_watch.h"
#include "modules/step_abort.h"
#include "trace/step_trace.h"

namespace lockstep::ddp {

// Which parameters have had a gradient since the last reduction: on this rank, and then on any rank. PyTorch:
// the reducer's `local_used_map`.
class UsedParameters {
 public:
  UsedParameters(std::size_t parameters, c10::Device device);

  void mark(std::size_t parameter) { here_.data_ptr<std::int32_t>()[parameter] = 1; }
  // A collective call; used_anywhere() returns its result.
  void reduce(const ProcessGroup& group, std::source_location where);
  // Waits for the reduction if this rank did not use the parameter.
  bool used_anywhere(std::size_t parameter);
  // Waits for the reduction and starts over.
  void clear();

 private:
  void wait();

  at::Tensor here_;  // int32, on the CPU
  at::Tensor sent_;  // on the parameters' device
  Work work_;
  bool waited_ = true;
};

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
// next forward then calls recover_if_failed(), which returns to idle. `aborted`: another rank announced a
// failed step in its gradients (note [Failed steps] in reducer_recovery.cpp).
//
// What the steps so far have taught (Learned): the order of gradients, from which the buckets are rebuilt
// once (Learned::Order), and what a static graph looks like (Learned::Graph).
//
// Threads: forward's thread calls the public functions; autograd's threads call on_gradient_ready() and
// on_backward_end(). `mutex_` separates them. No thread of its own.
//
// Invariants:
// - Reductions begin in the order of `buckets_` on every rank, whatever the order of gradients.
// - Buckets before step_.next_bucket have begun; each begins once a step.
// - Buckets change only in `forward`, before the module runs.

struct ReducerOptions {
  BucketLimits limits = {};
  bool gradient_as_bucket_view = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool skip_all_reduce_unused_params = false;
  bool batched_grad_copy = false;
  bool lazy_bucket_allocation = false;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer_in_backward = {};
  // In mixed precision: the type of gradients in backward, and a function to call after the reduction.
  std::optional<at::ScalarType> gradient_dtype = {};
  std::function<void()> after_reduction = {};
  std::string no_recovery = {};     // the option that makes a failed backward final, if any
  const bool* sync = nullptr;       // false while no_sync() is open; nullptr: always true
  std::source_location where = {};  // for call records
};

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

  // Notices gradients of these parameters that no hook sees, because a parameter was frozen or has been
  // converted since. Again after each change of the module.
  void watch_gradients(std::vector<modules::NamedTensor> parameters);

  // A forward whose backward is not reduced, by no_sync().
  void begin_local_forward();

  // When the module has changed. See reducer_change.cpp.

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
  // Averages the gradients of no_sync() of parameters that are not among these. Collective.
  void average_leaving(const std::vector<TrainedParameter>& parameters);
  // Begins anew with these parameters, which keep their gradients.
  void rebuild(std::vector<TrainedParameter> parameters);
  // The same parameters, of which `tensors` stand for those that have changed, until the result is destroyed.
  [[nodiscard]] std::shared_ptr<void> stand_in(const std::function<at::Tensor(std::size_t)>& tensor);

  // Ends begin_forward(). `outputs`: the tensors that forward returned.
  void expect_backward(const std::vector<at::Tensor>& outputs);
  // Whether on_backward_begin() must be called when backward passes forward's outputs.
  bool watches_outputs() const { return options_.static_graph || options_.find_unused_parameters; }
  void on_backward_begin();

  // After parameters have changed their type, and with it their node in the graph.
  void renew_hooks();
  // Before a forward. Throws Error if a GraphedStep would capture it and cannot.
  void enter_graph(bool in_join);

  void register_comm_hook(CommHook hook);
  // Called once a backward for the divisor of the sums. Default: the size of the group.
  void set_divisor(std::function<int()> divisor) { divisor_source_ = std::move(divisor); }

  // In a join, on a rank without data. See reducer_shadow.cpp.

  // Makes the calls of a backward with zero gradients.
  void shadow_backward();
  // Makes the calls of an iteration as the ranks that have data announce them.
  void shadow_announced_calls();
  // Whether the step that shows a static graph has still to come.
  bool in_first_static_step() const { return learned_.graph == Learned::Graph::first_step; }

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<TrainedParameter>& parameters() const { return parameters_; }
  tracing::StepClock& clock() { return clock_; }
  const tracing::StepClock& clock() const { return clock_; }
  tracing::StepTrace& trace() { return trace_; }
  const std::vector<std::int64_t>& arrived_last() const { return arrived_last_; }
  // With optimizer_in_backward: one for each parameter.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const { return optimizers_; }
  // False during a reduced backward, after one that was not completed, and if a gradient was not reduced.
  bool has_averaged_gradients() const;

 private:
  struct Step {
    enum class Phase { idle, forward, awaiting, backward, incomplete, finishing, aborted };

    Phase phase = Phase::idle;
    Phase before_forward = Phase::idle;  // in `forward`: the phase that it interrupts
    std::size_t hook_calls = 0;
    std::size_t ready_count = 0;
    std::vector<bool> ready = {};      // [parameter]
    std::vector<int> hooks_left = {};  // [parameter], of a static graph
    std::size_t next_bucket = 0;       // the first whose reduction has not begun
    int divisor = 0;                   // 0: not asked for yet
    std::vector<bool> is_local = {};   // [parameter]: a gradient has been added that no backward has reduced
    int local_forwards = 0;            // in no_sync(), whose backwards are to come
    bool in_local_backward = false;    // of one of them
  };
  using Phase = Step::Phase;

  struct Learned {
    enum class Order { unknown, known, applied };  // applied: the buckets have been rebuilt
    enum class Graph { dynamic, first_step, fixed };

    Order order = Order::unknown;
    std::vector<std::int64_t> ready_order = {};  // parameters in the order of the first reduced backward
    Graph graph = Graph::dynamic;
    std::vector<int> hook_counts = {};     // [parameter]: hook calls in a backward of a static graph
    std::vector<std::size_t> unused = {};  // parameters, ascending, that this rank's graph does not reach
  };

  struct Location {
    std::size_t bucket;
    std::size_t slot;
  };

  void forget_steps();
  void enter(Phase next);  // throws Error unless it may follow
  void note_claim();
  bool in(Phase phase) const { return step_.phase == phase; }

  // From hooks to buckets.
  void begin_backward();
  void on_gradient_ready(std::size_t parameter);
  void take_local_gradient(std::size_t parameter);
  void on_unhooked_gradient(const modules::NamedTensor& parameter);
  // Whether no_sync() covers the backward that runs.
  bool is_meant_to_be_local();
  void mark_unaveraged(const std::string& name, const at::Tensor& parameter);
  void judge_marked();
  void end_local_backward();
  void count_hook_call(std::size_t parameter);
  void mark_ready(std::size_t parameter);
  void step_in_backward(std::size_t parameter);
  void check_first_gradient(std::size_t parameter) const;
  void on_backward_end();

  // Between gradients and buckets.
  void copy_to_bucket(Bucket& bucket, Bucket::Slot& slot);
  void take_sparse_gradient(Bucket& bucket);
  void copy_all_to_bucket(Bucket& bucket);
  void finish(Bucket& bucket);
  void finish_dense(Bucket& bucket);
  void finish_cast(const Bucket& bucket, const at::Tensor& reduced);

  // Reductions.
  BucketWork start_reduction(std::size_t bucket, const at::Tensor& buffer);
  void start_full_buckets();
  void finish_completed_buckets();
  void reduce_first_static_step();
  void finish_backward();
  enum class Results { deliver, discard };  // whether they become gradients
  // Returns whether a rank announced a failed step.
  bool wait_for_reductions(Results results);
  void end_step();
  std::string description(const Bucket& bucket) const;
  void trace_bucket(const Bucket& bucket);
  int divisor();

  // Failed steps.
  enum class Contribution { zeros, announcement };
  void recover();
  void check_recoverable();
  void contribute(std::size_t bucket, Contribution contribution);
  bool complete_with(Contribution contribution);
  std::vector<std::string> announce(const std::string& reason);
  std::optional<std::size_t> announcing_bucket() const;
  bool can_announce() const;
  void finish_shadow();

  // Buckets.
  BucketPlan first_plan() const;
  void set_buckets(const BucketPlan& plan);
  void move_gradients_into_buckets();
  void begin_buckets();
  std::vector<std::int64_t> ready_order_of_rank_0() const;

  bool finds_unused() const { return options_.find_unused_parameters && !options_.static_graph; }
  bool learns_order() const { return learned_.order == Learned::Order::unknown && !finds_unused(); }
  bool was_used(std::size_t parameter);
  bool keeps_buckets() const { return optimizers_.empty() && !options_.lazy_bucket_allocation; }
  // A group of one has nothing to reduce: gradients stay where autograd puts them.
  bool has_nothing_to_reduce() const { return group_.size() == 1 && !hook_; }
  std::string whoami() const;

  std::vector<TrainedParameter> parameters_;
  ProcessGroup group_;
  ReducerOptions options_;
  CommHook hook_;
  std::function<int()> divisor_source_;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<at::ScalarType> dtypes_;  // of the parameters, outside of backward
  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;  // [parameter]
  UsedParameters used_;
  modules::StepAbort abort_;
  tracing::StepClock clock_;
  tracing::StepTrace trace_;
  std::vector<std::int64_t> arrived_last_;

  mutable std::mutex mutex_;
  Step step_;
  std::atomic<Claim> claim_{Claim::none};  // of step_, for reducers of the same parameters
  Learned learned_;
  std::shared_ptr<const std::string> unaveraged_;  // the text of the first backward past the wrapper
  std::vector<at::Tensor> marked_;                 // by it, until it ends
  int marked_in_ = -1;                             // the number of the last one
  bool is_used_ = false;                           // an optimizer has used such a gradient
  bool has_warned_ = false;
  std::optional<c10::Stream> hooks_stream_;  // on which the hooks were made for a graph
  std::vector<modules::NamedTensor> watched_;
  // Last: destroyed before what they use.
  std::unique_ptr<GradientHooks> hooks_;
  std::unique_ptr<UnhookedGradients> unhooked_;
};

}  // namespace lockstep::ddp
