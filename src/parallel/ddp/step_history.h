// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ddp/autograd_hooks.h"
#include "ddp/buckets.h"

namespace lockstep::ddp {

// What the steps so far have taught: the order of gradients, from which the buckets are rebuilt once, and
// what a static graph looks like. The reducer's lock protects it.
class StepHistory {
 public:
  // The arguments outlive it.
  StepHistory(const Buckets& buckets, const ProcessGroup& group, const ReducerOptions& options)
      : buckets_(buckets), group_(group), options_(options) {
    forget();
  }

  void forget();
  // `outputs`: the tensors that forward returned.
  void begin_backward(const std::vector<at::Tensor>& outputs, const GradientHooks& hooks);
  // A hook has been called. Returns whether it was the parameter's last in this backward, which the first
  // step of a static graph does not know. Throws Error if a static graph has changed.
  bool note_hook_call(std::size_t parameter);
  void note_gradient(std::size_t parameter);
  // At the end of the backward that shows a static graph.
  void find_unused();
  void end_step();
  // In place of a step, on a rank that has no gradients whose order it could see.
  void learn_order_of_construction();

  // Whether the step that shows a static graph has still to come.
  bool in_first_static_step() const { return graph_ == Graph::first_step; }
  // Parameters, ascending, that this rank's graph does not reach.
  const std::vector<std::size_t>& unused() const { return unused_; }
  // Whether the order of gradients is known and the buckets do not follow it yet.
  bool is_rebuild_due() const { return order_ == Order::known; }
  void end_rebuild() { order_ = Order::applied; }
  // The buckets by rank 0's order, which is then that of all. Collective.
  BucketPlan plan();
  // See BucketOrder.
  std::vector<std::int64_t> order() const;
  void restore_order(std::vector<std::int64_t> order);

 private:
  enum class Order : std::uint8_t { unknown, known, applied };  // applied: the buckets have been rebuilt
  enum class Graph : std::uint8_t { dynamic, first_step, fixed };

  std::int64_t digest_of_parameters() const;
  bool learns_order() const { return order_ == Order::unknown && !options_.finds_unused(); }

  const Buckets& buckets_;
  const ProcessGroup& group_;
  const ReducerOptions& options_;
  Order order_ = Order::unknown;
  std::vector<std::int64_t> ready_order_;  // parameters in the order of the first reduced backward
  Graph graph_ = Graph::dynamic;
  std::vector<int> hook_counts_;  // [parameter]: hook calls in a backward of a static graph
  std::vector<int> hooks_left_;   // [parameter], in this backward
  std::vector<std::size_t> unused_;
};

}  // namespace lockstep::ddp
