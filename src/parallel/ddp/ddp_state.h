// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>

#include <torch/nn/module.h>

#include <lockstep/ddp/join.h>
#include <lockstep/ddp/options.h>

#include "ddp/reducer.h"
#include "modules/agreement.h"
#include "modules/module_watch.h"
#include "nn/synced_batch_norm.h"

namespace lockstep::ddp {

// Parameters whose gradients share one flat tensor of their own, which is averaged after the gradient of
// another parameter has been computed. PyTorch: `delay_all_reduce_named_params`.
class DelayedReduction {
 public:
  DelayedReduction(std::vector<modules::NamedTensor> parameters, const at::Tensor& trigger,
                   ProcessGroup group, std::source_location where);
  ~DelayedReduction();
  DelayedReduction(const DelayedReduction&) = delete;
  DelayedReduction& operator=(const DelayedReduction&) = delete;

  // After a forward: moves the gradients into the flat tensor; dropped ones become zeros.
  void prepare(bool sync);

 private:
  void reduce();

  std::vector<modules::NamedTensor> parameters_;
  at::Tensor trigger_;
  ProcessGroup group_;
  std::source_location where_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
  unsigned hook_ = 0;
  bool sync_ = false;
  Work work_;
};

// Gives parameters low-precision copies from forward to the end of backward, and their own values for the
// optimizer. PyTorch: DDP's native mixed precision.
class PrecisionSwitch {
 public:
  PrecisionSwitch(const std::vector<modules::NamedTensor>& parameters,
                  const std::vector<modules::NamedTensor>& buffers, const MixedPrecision& options);
  ~PrecisionSwitch() { raise(); }
  PrecisionSwitch(const PrecisionSwitch&) = delete;
  PrecisionSwitch& operator=(const PrecisionSwitch&) = delete;

  // Before forward. Also casts gradients, so that backward can add to them. Returns false if already low.
  bool lower();
  // After backward.
  void raise();
  bool is_low() const { return is_low_; }

 private:
  struct Parameter {
    at::Tensor tensor;
    at::Tensor full = {};  // its own values, while the tensor holds the copy
  };

  MixedPrecision options_;
  std::vector<Parameter> parameters_;
  bool is_low_ = false;
};

// The advice for tensors that cannot be sent, see check_can_be_sent().
constexpr const char* kOrIgnoreIt = ", or name it in params_and_buffers_to_ignore";

std::vector<modules::NamedTensor> without(std::vector<modules::NamedTensor> tensors,
                                          const std::vector<std::string>& names);
std::vector<modules::NamedTensor> joined(std::vector<modules::NamedTensor> first,
                                         const std::vector<modules::NamedTensor>& second);
// Throws ArgumentError if there are several types of devices.
c10::Device common_device(const std::vector<modules::NamedTensor>& parameters);

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

  // Throws ArgumentError for options and layers that a join cannot follow. `synced`: the module's.
  void begin_join(const std::vector<nn::SyncedLayer>& synced);
  void shadow_iteration();
  void finish_join(bool is_last_joiner);

  void sync_buffers();

  // Whether every gradient is an average over all ranks.
  bool has_averaged_gradients() const;

  // Without those of params_and_buffers_to_ignore.
  const std::vector<modules::NamedTensor>& parameters() const { return parameters_; }
  const ProcessGroup& group() const { return group_; }
  c10::Device device() const { return device_; }
  const Reducer& reducer() const { return *reducer_; }
  Reducer& reducer() { return *reducer_; }
  // For the graph, which may outlive this object.
  std::weak_ptr<Reducer> weak_reducer() const { return reducer_; }
  bool has_reducer() const { return reducer_ != nullptr; }

 private:
  struct Parts {
    BucketLimits limits;
    std::vector<TrainedParameter> trained = {};
    std::vector<modules::NamedTensor> delayed = {};
    at::Tensor trigger = {};  // param_to_hook_all_reduce
  };
  Parts look_at_arguments();
  // The module's parameters, its buffers and the parameters in buckets, as they are now.
  std::vector<TrainedParameter> look_at_module();
  void start_equal(const std::vector<TrainedParameter>& trained) const;
  // What the ranks compare, with `more` lines.
  modules::ModuleText text_of_module(const std::string& more = "") const;
  void make_reducer(std::vector<TrainedParameter> trained, const BucketLimits& limits, const bool& sync);
  void watch_gradients();

  // See ddp_changes.cpp.
  void follow_changes(bool in_step);
  std::vector<modules::ModuleChange> changes() const;
  void agree_on(const std::vector<modules::ModuleChange>& changes, bool in_step);
  [[noreturn]] void refuse_on_all_ranks(const std::string& change, bool in_capture) const;
  std::vector<std::string> announce_in_gradients(const std::string& change);
  void check_can_follow(const std::vector<modules::ModuleChange>& changes) const;
  void begin_anew(bool converted);
  void watch_module();
  // Those with gradients that were added or have replaced others since the last forward.
  std::vector<modules::NamedTensor> new_parameters() const;
  void refuse_new_parameters();
  std::string whoami() const;

  void begin_forward(bool training, bool sync, const std::optional<Joined>& in_join);
  bool will_sync_buffers() const;
  void sync_buffers(bool in_join, bool has_data);
  void broadcast_buffers(int source);
  int find_common_rank(bool candidate) const;

  // What all ranks of a join know of an iteration before its forward.
  struct Iteration {
    bool reduces;    // a rank's backward will be reduced
    bool announces;  // see note [Announced calls]
  };
  Iteration agree_on_iteration(bool has_data, bool reduces) const;

  const torch::nn::Module& module_;
  DistributedDataParallelOptions options_;
  ProcessGroup group_;
  bool sync_buffers_;
  bool skips_found_unused_;
  std::source_location where_;
  c10::Device device_{at::kCPU};
  std::vector<modules::NamedTensor> parameters_;
  std::vector<modules::NamedTensor> buffers_;
  std::vector<modules::NamedTensor>
      untrained_;  // parameters without requires_grad when the reducer was built
  // In a join: those of SyncBatchNorm layers, and whether there are such layers.
  std::vector<modules::NamedTensor> synced_buffers_;
  bool has_synced_layers_ = false;
  // False after a forward that was not for training.
  bool buffers_may_differ_ = true;
  std::unique_ptr<PrecisionSwitch> precision_;  // in mixed precision
  std::unique_ptr<DelayedReduction> delayed_;
  std::shared_ptr<Reducer> reducer_;  // null if all parameters are delayed
  bool has_trained_ = true;           // false while all parameters are frozen; the reducer keeps its buckets
  bool converted_ = false;            // parameters, while all are frozen
  std::optional<modules::ModuleWatch> watch_;
  std::shared_ptr<void> refuses_new_parameters_;  // in optimizers' steps
};

}  // namespace lockstep::ddp
