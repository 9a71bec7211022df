// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>

#include <torch/nn/module.h>

#include <lockstep/ddp/join.h>
#include <lockstep/ddp/options.h>

#include "ddp/delayed_reduction.h"
#include "ddp/module_changes.h"
#include "ddp/precision_switch.h"
#include "nn/synced_batch_norm.h"

namespace lockstep::ddp {

// Keeps one rank's module equal to the others': parameters by equal gradients, buffers by broadcasts.
class DdpState {
 public:
  // `module` outlives the calls. `sync`: false while no_sync() is open.
  DdpState(const torch::nn::Module& module, const DistributedDataParallelOptions& options, const bool& sync,
           std::source_location where);

  // The surrounding Join and its notice of this iteration.
  struct Joined {
    JoinOptions options;
    std::optional<Joinable::Notice> notice;
  };
  // The first call of a forward: recovers from a failed step, reports parameters without a gradient and
  // follows changes of the module, see note [Changes of the module].
  void prepare_for_forward(bool sync, bool in_join);
  void before_forward(bool sync, const std::optional<Joined>& joined);
  void after_forward(bool sync, const std::vector<at::Tensor>& outputs);

  // There is a reducer.
  void register_comm_hook(CommHook hook);

  // Throws ArgumentError for options and layers that a join cannot follow. `synced`: the module's.
  void begin_join(const std::vector<nn::SyncedLayer>& synced);
  void shadow_iteration();
  void finish_join(bool is_last_joiner);

  void sync_buffers();
  // As the next forward would, which then does not.
  void sync_buffers_if_due();

  // As WrapperModule's. `sync`: as at construction.
  void require_can_rejoin(bool in_join) const;
  void rejoin(const bool& sync, bool in_join);

  // Throws ArgumentError for what StepVerifier cannot compute again.
  void require_can_verify() const;
  // Whether a forward is one of StepVerifier for another rank, which makes no calls.
  bool is_replaying() const { return reducer_ && reducer_->is_replaying(); }

  // Whether every gradient is an average over all ranks.
  bool has_averaged_gradients() const;

  // Without those of params_and_buffers_to_ignore.
  const std::vector<modules::NamedTensor>& parameters() const { return tensors_.parameters(); }
  const ProcessGroup& group() const { return group_; }
  std::source_location where() const { return where_; }
  c10::Device device() const { return device_; }
  const Reducer& reducer() const { return *reducer_; }
  Reducer& reducer() { return *reducer_; }
  // For the graph, which may outlive this object.
  std::weak_ptr<Reducer> weak_reducer() const { return reducer_; }
  bool has_reducer() const { return reducer_ != nullptr; }

 private:
  // Throws ArgumentError. Returns the parameters in buckets.
  std::vector<TrainedParameter> look_at_arguments();
  // Looks at the module as it is now; returns the parameters in buckets.
  std::vector<TrainedParameter> look_at_module();
  // Compares the module with the other ranks', and makes the reducer. `syncs`: gives the ranks the values of
  // rank 0.
  void begin(bool syncs, const bool& sync);
  void start_equal(const std::vector<TrainedParameter>& trained, bool syncs) const;
  void drop_step();
  void make_reducer(std::vector<TrainedParameter> trained, const bool& sync);
  void follow_changes(bool in_step);
  void begin_anew(bool converted);
  void watch_module();
  // Mixed precision converts the parameters in each step.
  bool has_own_types() const { return precision_ == nullptr || !precision_->is_low(); }
  void begin_forward(bool training, bool sync, const std::optional<Joined>& in_join);

  // What all ranks of a join know of an iteration before its forward.
  struct Iteration {
    bool reduces;    // a rank's backward will be reduced
    bool announces;  // see note [Announced calls]
  };
  Iteration agree_on_iteration(bool has_data, bool reduces) const;
  int find_common_rank(bool candidate) const;

  DistributedDataParallelOptions options_;
  ProcessGroup group_;
  Features features_;
  std::source_location where_;
  c10::Device device_{at::kCPU};
  WrappedTensors tensors_;
  BufferSync buffers_;
  ModuleChanges changes_;
  // In a join: those of SyncBatchNorm layers, and whether there are such layers.
  std::vector<modules::NamedTensor> synced_buffers_;
  bool has_synced_layers_ = false;
  std::unique_ptr<PrecisionSwitch> precision_;  // in mixed precision
  std::unique_ptr<DelayedReduction> delayed_;
  std::shared_ptr<Reducer> reducer_;  // null if all parameters are delayed
  CommHook hook_;                     // a registered one
  bool can_train_ = true;             // false after a rejoin() that failed
  bool has_trained_ = true;           // false while all parameters are frozen; the reducer keeps its buckets
  bool converted_ = false;            // parameters, while all are frozen
};

}  // namespace lockstep::ddp
