// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/gradient_reduction.h"
#include "fsdp/shard_gather.h"
#include "fsdp/sharded_parameter.h"
#include "fsdp/use_plan.h"
#include "modules/named_tensors.h"

namespace lockstep::fsdp {

class Tree;

// What FSDPModule::forward() converts for the module of a call of fully_shard().
struct ForwardPolicy {
  ForwardPolicy(const void* of_module, const MixedPrecisionPolicy& policy, std::string description)
      : module(of_module), mp_policy(policy), describe(std::move(description)) {}

  const void* module;
  MixedPrecisionPolicy mp_policy;
  std::string describe;               // "net.cpp:7: fully_shard(): Net"
  std::atomic<bool> is_used = false;  // by a call of FSDPModule::forward()

  // Called before an operator in a forward uses a parameter of the module. Throws if the module has an
  // output_dtype and FSDPModule::forward() was never called.
  void check() const;
};

// The parameters of one call of fully_shard(). The storages of the module's parameters own it. The first part
// does not change after fully_shard(); the second is for functions of Tree, which hold its mutex.
class ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
 public:
  // Checks the parameters, and leaves them as they are until distribute().
  static std::shared_ptr<ParameterGroup> create(const std::vector<modules::NamedTensor>& parameters,
                                                GroupOptions options, std::shared_ptr<Tree> tree);
  ParameterGroup(GroupOptions options, std::shared_ptr<Tree> tree);
  // Collective.
  void distribute();
  // A line for each parameter, equal on all ranks that can distribute them together.
  std::string text() const;

  const std::shared_ptr<Tree>& tree() const { return tree_; }
  std::size_t number() const { return number_; }  // in the tree
  void move_to(std::shared_ptr<Tree> tree, std::size_t number) {
    tree_ = std::move(tree);
    number_ = number;
  }
  const ProcessGroup& shard_group() const { return options_.shard_group; }
  bool is_replica() const { return options_.replicas && options_.replicas->rank() != 0; }  // not the first
  std::source_location where() const { return options_.where; }  // of the call of fully_shard()
  const std::vector<ShardedParameter>& parameters() const { return parameters_; }
  const void* module() const { return options_.module; }
  bool is_shared() const { return options_.share_memory; }
  std::string describe() const { return fsdp::describe(parameters_, options_); }

  // Whether the parameters are on device meta.
  bool is_deferred() const { return parameters_.front().shard.is_meta(); }
  // The values of a parameter on device meta, for to_empty(). `whole` has all rows.
  void set_initial(const at::Tensor& parameter, const at::Tensor& whole);

  // With the tree's mutex held.
  ShardGather& gather() { return gather_; }
  GradientReduction& gradients() { return gradients_; }
  TrafficCount& traffic() { return traffic_; }
  // Gives parameters on device meta memory on another one. Collective.
  void to_empty(c10::Device device);
  // Between uses in this pass.
  bool can_release(UsePlan::Pass pass, bool is_outermost) const;
  void set_reshard_after_forward(bool reshard);
  // Reduces gradients, and frees the parameters.
  void reduce(GradientReduction::Reduction gradients, StepCalls& calls);
  void end_backward(StepCalls& calls);
  // For Tree::require_can_rejoin().
  void require_can_rejoin() const;
  // For Tree::keep_settings().
  void keep_settings();
  // For Tree::rejoin(). Makes no call.
  void rejoin(StepCalls& calls);
  // The optimizer's shards require gradients where the module's parameters do.
  void follow_training();

  using Prefetch = std::array<std::vector<std::weak_ptr<ParameterGroup>>, 2>;

  bool stays_whole = false;  // until the end of backward, because it has views without guards
  bool reshard_after_backward = true;
  // [pass]: what a use of this group prefetches. Empty: what the last step used next.
  Prefetch prefetch;
  // Those of the modules that have the parameters, the innermost first.
  std::vector<std::shared_ptr<ForwardPolicy>> forward_policies;

 private:
  // What functions of FSDPModule set.
  struct Settings {
    std::optional<bool> reshard_after_forward;
    int ranks_after_forward = 0;
    bool reshard_after_backward = true;
    Prefetch prefetch;
    bool requires_sync = true;
    bool requires_all_reduce = true;
    std::optional<double> divide_factor;
  };

  void add(const modules::NamedTensor& named);
  void check(const modules::NamedTensor& named) const;
  std::int64_t shard_dim(const modules::NamedTensor& named) const;
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

  GroupOptions options_;
  std::shared_ptr<Tree> tree_;
  std::size_t number_ = 0;
  std::vector<ShardedParameter> parameters_;
  TrafficCount traffic_;
  ShardGather gather_;
  GradientReduction gradients_;
  std::optional<Settings> kept_settings_;
};

// The group of a module's parameter; nullptr if fully_shard() did not take it.
std::shared_ptr<ParameterGroup> group_of(const at::Tensor& parameter);

}  // namespace lockstep::fsdp
