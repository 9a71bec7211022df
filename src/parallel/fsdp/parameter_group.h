// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "fsdp/forward_policy.h"
#include "fsdp/group_options.h"
#include "fsdp/memory_count.h"
#include "fsdp/parameter_memory.h"
#include "fsdp/sharded_parameter.h"
#include "modules/named_tensors.h"

namespace lockstep::fsdp {

struct Tree;

// The parameters of one call of fully_shard(). The storages of the module's parameters own it. Functions
// without a comment on threads run with the tree's mutex held, but for those that nothing else can call yet.
class ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
 public:
  // Checks the parameters, and leaves them as they are until distribute().
  static std::shared_ptr<ParameterGroup> create(const std::vector<modules::NamedTensor>& parameters,
                                                GroupOptions options, std::shared_ptr<Tree> tree);
  ParameterGroup(GroupOptions options, std::shared_ptr<Tree> tree);
  ~ParameterGroup();
  // Collective.
  void distribute();
  // A line for each parameter, equal on all ranks that can distribute them together.
  std::string text() const;

  const std::shared_ptr<Tree>& tree() const { return tree_; }
  void move_to(std::shared_ptr<Tree> tree) { tree_ = std::move(tree); }
  const ProcessGroup& shard_group() const { return options_.shard_group; }
  const std::optional<ProcessGroup>& replicas() const { return options_.replicas; }
  // Returns when all ranks have called it.
  void barrier() const { options_.shard_group.barrier(options_.where); }
  std::source_location where() const { return options_.where; }  // of the call of fully_shard()
  const std::vector<ShardedParameter>& parameters() const { return parameters_; }
  const void* module() const { return options_.module; }
  bool is_shared() const { return options_.share_memory; }
  std::string describe() const;  // "the group of layers.0.weight of fully_shard() in net.cpp:7"

  // Whether the parameters are on device meta.
  bool is_deferred() const { return parameters_.front().shard.is_meta(); }
  // The values of a parameter on device meta, for to_empty(). `whole` has all rows.
  void set_initial(const at::Tensor& parameter, const at::Tensor& whole);
  // Gives parameters on device meta memory on another one. Collective.
  void to_empty(c10::Device device);

  // Called before an operator uses a parameter, on its thread, without the mutex.
  intercept::MemoryGuard::Views before_use(std::string_view op, bool writes);
  // Called by autograd, on its thread, without the mutex.
  void before_gradient();
  void on_gradient_ready(std::size_t index);

  // Whether the module's parameters exist and have the values of the shards.
  bool is_current() const;
  void prefetch();
  void drop_prefetch();
  void make_whole();
  // If it is shared. Ranks neither read nor write the parameters meanwhile. Returns whether it has copied.
  bool make_current_in_shared_memory();
  void release();
  void release_after_forward();
  // FSDPModule::reshard(). Called without the mutex.
  void reshard();
  // If it is shared: later uses of parameters and shards throw.
  void forbid_access(const std::string& why) const;
  // The shards may have changed, also without a change of their version.
  void invalidate();
  bool is_whole() const { return is_whole_; }
  void count_memory(MemoryCount& count) const;
  TrafficCount& traffic() { return traffic_; }
  // The name of the first parameter in traces.
  void set_traced_name(std::string name) { traced_name_ = std::move(name); }

  // The first parameters that have changed in the module.
  struct Changes {
    const ShardedParameter* moved = nullptr;      // to other memory
    const ShardedParameter* retrained = nullptr;  // frozen or unfrozen
  };
  Changes changes() const;
  // The optimizer's shards require gradients where the module's parameters do.
  void follow_training();
  // A line for each parameter: whether the module's requires a gradient.
  std::string training_text() const;

  // Gradients.
  void begin_backward();
  void reduce();            // those that exist, also of earlier passes; nothing if there are none
  void finish_reduction();  // waits, and accumulates into the shards' gradients
  void end_backward();
  void zero_grad();
  // After a change of requires_gradient_sync.
  void set_gradient_dtypes();
  void fill_gradients_with_zeros();
  // What the zero_grad() of the module has zeroed.
  void drop_zeroed_gradients();
  // Something other than backward may have set gradients of shards.
  void note_gradients();

  // Between uses in forward, or in backward.
  bool can_release(bool in_backward) const;
  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;               // over the replicas
  std::optional<double> gradient_divide_factor;  // none: the mean
  bool reshard_after_backward = true;
  // Empty: what the last step used next.
  std::vector<std::weak_ptr<ParameterGroup>> forward_prefetch, backward_prefetch;
  void set_reshard_after_forward(bool reshard);

  // The policies of the modules that have the parameters, the innermost first.
  std::vector<std::shared_ptr<ForwardPolicy>> forward_policies;

  // The tree's notes on the order of use.
  int runs = 0;          // of operators on this group, in this forward or backward
  int forward_runs = 0;  // in the last one
  int backward_runs = 0;
  bool is_held = false;      // whole by FSDPModule::unshard(), and not used since
  bool stays_whole = false;  // until the end of backward, because it has views without guards

 private:
  struct Reduction {
    std::vector<std::size_t> parameters;
    CallTimes::Clock::time_point launched;
    at::Tensor input;
    at::Tensor output;
    double divisor = 1;
    std::optional<Work> work;
  };

  // Whether shards have not changed since they were made whole.
  bool has_last_values() const { return is_valid_ && whole_version_ == version_.current_version(); }
  void find_hosts();
  void add(const modules::NamedTensor& named);
  void place();
  void check(const modules::NamedTensor& named) const;
  std::int64_t shard_dim(const modules::NamedTensor& named) const;
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;
  void watch_gradients();
  at::ScalarType reduce_dtype() const;
  bool is_placeholder(const at::Tensor& gradient) const;
  bool has_gradient(const ShardedParameter& parameter) const;
  at::Tensor take_gradient(ShardedParameter& parameter);
  void record_gathering();
  void record_reduction(const CallTimes& call);
  void accumulate(const Reduction& reduction, const at::Tensor& mean);
  bool reduce_over_replicas(Reduction& reduction);

  GroupOptions options_;
  std::shared_ptr<Tree> tree_;
  std::vector<ShardedParameter> parameters_;
  std::unique_ptr<ParameterMemory> memory_;
  int trained_ = 0;
  int ready_ = 0;
  std::vector<bool> is_ready_;
  std::optional<Reduction> reduction_;
  // The sums over the shards of backward passes that did not reduce over the replicas.
  struct Partial {
    std::vector<std::size_t> parameters;
    at::Tensor sum;
  };
  std::optional<Partial> partial_;
  c10::VariableVersion version_;  // of all shards
  std::uint32_t whole_version_ = 0;
  std::uint32_t prefetched_version_ = 0;
  bool is_valid_ = false;
  bool is_whole_ = false;
  TrafficCount traffic_;
  std::string traced_name_;
  at::Tensor no_gradient_;  // what an optimizer of the module's parameters finds
};

}  // namespace lockstep::fsdp
