// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/comm_hook.h>

#include "ddp/bucket.h"
#include "ddp/gradient_hooks.h"
#include "ddp/group_trouble.h"
#include "ddp/step_clock.h"
#include "ddp/step_trace.h"
#include "ddp/used_parameters.h"

namespace lockstep::ddp {

struct ReducerOptions {
  BucketLimits limits = {};
  bool gradient_as_bucket_view = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool skip_all_reduce_unused_params = false;
  bool batched_grad_copy = false;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer_in_backward = {};
  // In mixed precision: the type of gradients in backward, and what is to be done when they are reduced.
  std::optional<at::ScalarType> gradient_dtype = {};
  std::function<void()> after_reduction = {};
  std::string no_recovery = {};     // the option that makes a failed backward final, if any
  std::source_location where = {};  // what call records show
};

// Averages gradients across the group while backward runs. Follows c10d::Reducer: the same buckets in the
// same order, the same arithmetic, hence the same bits.
//
// Threads: the public functions from the thread that calls forward; gradients become ready on autograd's
// threads; the mutex keeps the two apart.
class Reducer {
 public:
  Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, ReducerOptions options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before any call of a forward. After a forward or backward that an exception ended, brings the ranks
  // together again; throws Error where that cannot be, and, when the forward's backward is to be reduced,
  // naming the parameters that took no part in the last one. Writes the trace when it is due, unless ranks
  // may be in a join.
  void settle(bool reduces, bool in_join);
  // The forward, whose backward will be reduced, has begun; expect_backward() ends it.
  void begin_forward();
  // Once in a run, when the order of gradients is known; a collective call.
  void rebuild_buckets_if_due();
  // The next backward will be reduced; forward has returned these tensors.
  void expect_backward(const std::vector<at::Tensor>& outputs);
  // Whether it has to hear when backward passes forward's outputs; then it is to be told.
  bool watches_outputs() const { return options_.static_graph || options_.find_unused_parameters; }
  void on_backward_begins();

  // After parameters have got data of another type, and with it another place in the graph.
  void renew_hooks();
  // Before a forward. Throws Error when it is to be captured by a GraphedStep and cannot be.
  void enter_graph(bool in_join);

  void register_comm_hook(CommHook hook);
  // Called once a backward, for the number by which sums are divided. Default: the size of the group.
  void set_divisor(std::function<int()> divisor) { divisor_source_ = std::move(divisor); }
  // Makes the calls of a backward with gradients of zero, for the ranks that still have data.
  void shadow_backward();

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<TrainedParameter>& parameters() const { return parameters_; }
  StepClock& clock() { return clock_; }
  const StepClock& clock() const { return clock_; }
  StepTrace& trace() { return trace_; }
  const std::vector<std::int64_t>& arrived_last() const { return arrived_last_; }
  // One for each parameter, where they run in backward.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers() const { return optimizers_; }
  // Not after a backward without reduction, or in one.
  bool has_averaged_gradients() const;

 private:
  struct Place {
    std::size_t bucket;
    std::size_t slot;
  };

  // Gradients becoming ready.
  void on_gradient_ready(std::size_t parameter);
  void count_fire(std::size_t parameter);
  void mark_unused_ready();
  void mark_ready(std::size_t parameter);
  void refuse_second_gradient(std::size_t parameter) const;
  void queue_end();
  void on_backward_ends();

  // From gradients to buckets and back.
  void take_gradient(Bucket& bucket, Bucket::Slot& slot);
  void take_sparse_gradient(Bucket& bucket);
  void take_together(Bucket& bucket);
  void deliver(Bucket& bucket);
  void deliver_sparse(Bucket& bucket);
  void deliver_dense(Bucket& bucket);
  void deliver_cast(const Bucket& bucket, const at::Tensor& reduced);
  void apply_optimizers(Bucket& bucket);
  at::Tensor gradient_like(const TrainedParameter& parameter, const at::Tensor& values) const;

  // Reductions.
  BucketWork start(std::size_t bucket, const at::Tensor& buffer);
  void start_rest_with_zeros();
  void launch_full_buckets();
  void reduce_all_at_end();
  void finish_backward();
  void wait_for_all(bool and_deliver);
  void end_step();
  void trace_bucket(const Bucket& bucket);
  void trace_step();
  void recover();
  void refuse_to_recover();
  [[noreturn]] void throw_unused();
  int divisor();

  // Buckets.
  BucketPlan first_plan() const;
  void lay_out(const BucketPlan& plan);
  void move_gradients_into_buckets();
  void begin_buckets();
  std::vector<std::int64_t> arrival_on_rank_0() const;

  bool finds_unused() const { return options_.find_unused_parameters && !options_.static_graph; }
  bool in_first_static() const { return options_.static_graph && !static_known_; }
  bool learns_arrival() const { return !arrival_known_ && (options_.static_graph || !finds_unused()); }
  bool was_used(std::size_t parameter);
  // A group of one has nothing to reduce: gradients stay where autograd puts them.
  bool bypasses() const { return group_.size() == 1 && !hook_; }
  std::string whoami() const;
  void follow_stream();

  std::vector<TrainedParameter> parameters_;
  ProcessGroup group_;
  ReducerOptions options_;
  CommHook hook_;
  std::function<int()> divisor_source_;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<at::ScalarType> dtypes_;  // of the parameters, outside of backward
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  UsedParameters used_;
  GroupTrouble trouble_;
  StepClock clock_;
  StepTrace trace_;
  std::vector<std::int64_t> arrived_last_;

  mutable std::mutex mutex_;
  bool in_forward_ = false;      // which has not come to its end
  bool expecting_ = false;       // a backward that is to be reduced may come or is under way
  bool started_ = false;         // its first gradient is there
  bool end_queued_ = false;      // autograd will call on_backward_ends()
  bool local_only_ = false;      // gradients have come that were not to be reduced
  bool failed_ = false;          // its reductions ended with an error
  int divisor_ = 0;              // in it; 0: not known yet
  std::size_t next_bucket_ = 0;  // the first one that is not under way
  std::size_t ready_count_ = 0;
  std::vector<bool> ready_;
  std::vector<std::size_t> unused_;  // parameters that this rank's graph does not reach
  bool unused_marked_ = false;

  std::vector<std::int64_t> arrival_;  // parameters in the order of the first reduced backward
  bool arrival_known_ = false;
  bool rebuilt_ = false;

  bool static_known_ = false;    // the first backward of a static graph is over
  std::vector<int> fires_;       // how often each parameter's hook is called in a backward of a static graph
  std::vector<int> fires_left_;  // in this one
  std::optional<c10::Stream> hooks_stream_;  // where they were made for a graph
  std::unique_ptr<GradientHooks> hooks_;     // last: gone before what they use
};

}  // namespace lockstep::ddp
