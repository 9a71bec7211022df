// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/base/mutex.h>

#include "device/module_snapshot.h"
#include "fsdp/step_calls.h"
#include "fsdp/use_plan.h"
#include "intercept/storage_guard.h"
#include "modules/rank_part.h"

namespace lockstep::fsdp {

class ParameterGroup;

// The groups of a module and its children, and their steps. Threads: any. All public functions take the
// mutex, which protects the tree and its groups; what they call does not. Operators call no guards meanwhile,
// and the tree owns no group, whose end takes no mutex: so no thread takes it twice.
class Tree final : public std::enable_shared_from_this<Tree>, public modules::RankPartOwner {
 public:
  using Groups = std::vector<std::shared_ptr<ParameterGroup>>;

  // The groups of `earlier`, in the order of the calls of fully_shard(). It has none from then on. Takes the mutexes
  // of both trees together, which clang cannot follow.
  void adopt(std::shared_ptr<Tree> earlier) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  // Distributes the group of the outermost module, which follows those of adopt(). After an error, every use
  // of a parameter of the tree throws. Collective.
  void distribute_outermost(const std::shared_ptr<ParameterGroup>& group);
  // Gives a group that is on device meta this rank's rows on `device`. `where`: the line of to_empty(). After an
  // error, every use of a parameter of the tree throws. Collective.
  void to_empty(ParameterGroup& group, c10::Device device, std::source_location where);
  // From now on the module has to keep its parameters. `caller`: "net.cpp:7: fully_shard()". Collective.
  void watch(const torch::nn::Module& module, const std::string& caller,
             const std::vector<ProcessGroup>& ranks);

  struct Operator {
    bool is_forward = true;        // unless autograd runs it
    bool has_plain_views = false;  // see intercept::MemoryGuard
  };
  // Before an operator uses the group's parameters.
  intercept::MemoryGuard::Views use(ParameterGroup& group, const Operator& op);
  // Autograd calls these two, on its threads.
  void before_gradient();
  void on_gradient_ready(ParameterGroup& group, std::size_t parameter);
  // Reduces what has accumulated. Collective.
  void end_backward();

  // The groups of ranks have been formed again: drops what the last step has begun, gathered and learned. The shards
  // stay, without gradients. Makes no call, but all ranks do it in the same order.
  void rejoin() override;
  void keep_settings() override;
  // Throws if a group cannot, or as check().
  void require_can_rejoin() const override;

  // FSDPModule::forward() begins.
  void begin_forward();
  // Makes the group current without an effect on the learned order. Collective.
  void make_current(ParameterGroup& group);
  // The same until an operator has used it.
  void hold(ParameterGroup& group);
  void prefetch(ParameterGroup& group);
  void reshard(ParameterGroup& group);
  // Those that live.
  Groups groups() const {
    const Lock lock(mutex_);
    return living();
  }
  // Throws if an earlier failure left parameters of two steps, or a fully_shard() left some without values.
  void check() const;
  // Throws ArgumentError if the module's parameters are not those that the groups have. The other ranks' next
  // calls in run() fail then.
  void check_parameters();

  // Calls `function(calls)`, which changes groups of the tree.
  template <typename Function>
  auto locked(const Function& function) {
    const Lock lock(mutex_);
    return function(calls_);
  }
  // Calls `function(group)` for each of `groups` in locked() of its tree.
  template <typename AnyGroups, typename Function>
  static void change(const AnyGroups& groups, const Function& function) {
    for (const auto& group : groups) group->tree()->locked([&](StepCalls&) { function(*group); });
  }

 private:
  struct LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) Lock {
    explicit Lock(Mutex& mutex) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(mutex)) : held(mutex) {}
    ~Lock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) = default;
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    intercept::WithoutGuards no_operator_calls_us;
    MutexLock held;
  };

  // The outermost module, unless it is in no shared_ptr.
  struct Watched {
    std::weak_ptr<const torch::nn::Module> module;
    device::ModuleSnapshot known;
  };

  bool in_backward() const LOCKSTEP_REQUIRES(mutex_) { return !pass_.expired(); }
  bool is_in_forward() const LOCKSTEP_REQUIRES(mutex_);
  UsePlan::Pass pass() const LOCKSTEP_REQUIRES(mutex_) {
    return in_backward() ? UsePlan::backward : UsePlan::forward;
  }
  Groups living() const LOCKSTEP_REQUIRES(mutex_);
  void insert(const std::shared_ptr<ParameterGroup>& group) LOCKSTEP_REQUIRES(mutex_);
  void begin_forward(const ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void begin_backward() LOCKSTEP_REQUIRES(mutex_);
  void ensure_current(ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void switch_to(ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void prefetch_after(const ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void reduce(ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void synchronize() LOCKSTEP_REQUIRES(mutex_);
  void wait_for_ranks() LOCKSTEP_REQUIRES(mutex_);
  void wait_for_ranks_of(const ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void check_parameters_of(const Groups& all) LOCKSTEP_REQUIRES(mutex_);
  void check_module_of(const Groups& all) LOCKSTEP_REQUIRES(mutex_);
  void write_trace(const ParameterGroup& group) LOCKSTEP_REQUIRES(mutex_);
  void throw_if_failed() const LOCKSTEP_REQUIRES(mutex_);
  void fail(const std::string& failure) LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::weak_ptr<ParameterGroup>> groups_
      LOCKSTEP_GUARDED_BY(mutex_);  // in the order of the calls of fully_shard()
  const ParameterGroup* outermost_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;  // is not dereferenced
  StepCalls calls_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Watched> watched_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string caller_ LOCKSTEP_GUARDED_BY(mutex_);  // of watch()
  UsePlan plan_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string failure_ LOCKSTEP_GUARDED_BY(mutex_);
  bool in_forward_ LOCKSTEP_GUARDED_BY(mutex_) = false;   // that gradients follow
  std::weak_ptr<void> pass_ LOCKSTEP_GUARDED_BY(mutex_);  // expired: no backward pass is under way
  std::weak_ptr<ParameterGroup> reducing_ LOCKSTEP_GUARDED_BY(mutex_);  // the last one in this pass
};

}  // namespace lockstep::fsdp
