// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "fsdp/memory_count.h"
#include "fsdp/sharded_parameter.h"
#include "fsdp/step_record.h"

namespace lockstep::fsdp {

class StepCalls;

// Gradients of a group's whole parameters become mean gradients of its shards.
class GradientReduction {
 public:
  // FP16 sums can overflow, so a part of the division comes before them.
  struct Division {
    ReduceOp op = ReduceOp::AVG;
    double before = 1;
    double after = 1;
  };
  // One reduce-scatter of the gradients of some parameters.
  struct Reduction {
    std::vector<std::size_t> parameters;
    std::vector<at::Tensor> gradients;  // until pack(); the parameters have them no longer
    at::Tensor input;
    at::Tensor output;
    Division division;
    CallTimes::Clock::time_point launched;
    std::optional<Work> work;
  };

  GradientReduction(std::vector<ShardedParameter>& parameters, const GroupOptions& options,
                    TrafficCount& traffic);

  // The gradient of the module's parameters while their shards have gradients.
  const at::Tensor& placeholder() const { return placeholder_; }

  void begin_backward();
  // Returns whether all parameters that are trained have gradients in this pass.
  bool add_ready(std::size_t index);
  // Those that exist, also of earlier passes. None without requires_sync. Waits for the last reduction.
  Reduction take(StepCalls& calls);
  // Copies gradients into the memory that launch() reduces.
  void pack(Reduction& reduction) const;
  void launch(Reduction reduction, StepCalls& calls);
  // Waits, and accumulates into the shards' gradients.
  void finish(StepCalls& calls);
  void end_backward();

  void zero();
  // Drops a reduction that has failed, and all gradients.
  void forget_step();
  void fill_with_zeros();
  void divide(double divisor);
  // What the zero_grad() of the module has zeroed.
  void drop_zeroed();
  // Something other than backward may have set gradients of shards.
  void note_gradients();

  void set_requires_sync(bool requires_sync);
  bool requires_sync() const { return requires_sync_; }
  bool requires_all_reduce = true;      // over the replicas
  std::optional<double> divide_factor;  // none: the mean

  void add_to(MemoryCount& count) const;

 private:
  template <typename Change>
  void visit(const Change& change) const;
  Division division() const;
  at::ScalarType reduce_dtype() const;
  void set_dtypes();
  bool is_placeholder(const at::Tensor& gradient) const;
  void forget_ready();
  bool reduce_over_replicas(Reduction& reduction, StepCalls& calls);
  void accumulate(const Reduction& reduction);

  std::vector<ShardedParameter>& parameters_;
  const GroupOptions& options_;
  TrafficCount& traffic_;
  at::Tensor placeholder_;
  bool requires_sync_ = true;
  int trained_ = 0;  // in this pass
  int ready_ = 0;
  std::vector<bool> is_ready_;
  std::optional<Reduction> reduction_;
  std::optional<Reduction> partial_;  // of passes that did not reduce over the replicas
};

}  // namespace lockstep::fsdp
