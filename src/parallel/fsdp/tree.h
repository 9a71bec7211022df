// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

#include "device/module_snapshot.h"
#include "fsdp/host_split.h"
#include "fsdp/traffic.h"
#include "modules/change_agreement.h"
#include "trace/step_trace.h"

namespace lockstep::fsdp {

using tracing::StepTrace;

class ParameterGroup;

// The groups of a module and its children, and the order in which they are used. The mutex protects all
// groups of the tree.
struct Tree {
  std::recursive_mutex mutex;
  std::vector<ParameterGroup*> groups;  // in the order of the calls of fully_shard(); each removes itself
  ParameterGroup* outermost = nullptr;

  // Before an operator uses the group's parameters.
  void use(ParameterGroup& group);
  // Whether such an operator is one of a forward, also of one without gradients.
  bool is_in_forward() const;
  // Before use() by an operator of a forward.
  void begin_forward(const ParameterGroup& group);
  // Makes the group current until an operator has used it.
  void hold(ParameterGroup& group);
  // The same as use() without an effect on the learned order.
  void make_current(ParameterGroup& group);
  // Before the first gradient, or the first use, in a backward pass.
  void begin_backward();
  // Makes shared groups current together: all ranks leave the last step, and enter the next.
  void synchronize();
  void end_backward();
  // Waits for the reduction of another group, so that a rank has whole gradients of one group at a time.
  void before_reduction(ParameterGroup& group);
  // This rank's group among those of `size` consecutive ranks. The first call for a group is collective.
  const ProcessGroup& split(const ProcessGroup& ranks, int size);
  // The same for those of can_split_by_hosts().
  std::shared_ptr<const HostSplit> host_split(const ProcessGroup& ranks);
  // The times of a pass. Returns the time.
  CallTimes::Clock::time_point launch_reduction();
  void trace_call(tracing::StepTrace::Lane lane, const std::string& name, const CallTimes& call);
  // FSDPModule::trace() and that of FSDPModule::stats() which no single group has.
  void begin_trace(const std::string& path, int steps) { trace_.begin(path, steps); }
  void add_to(FSDPStats& stats) const;
  // Takes what ranks agree by from a tree whose groups are in this one now.
  void adopt_agreements(Tree& other);
  // A group does not exist any more.
  void forget(const ParameterGroup& group);
  // Throws if an earlier failure left parameters of two steps.
  void check() const;
  // Records such a failure. Later uses of shared parameters throw.
  void fail(const std::string& failure);
  // A barrier of all ranks that share memory, whose failure may leave parameters of two steps.
  void wait_for_ranks();

  // From now on the module has to keep its parameters. `caller`: "net.cpp:7: fully_shard()". Collective.
  void watch(const torch::nn::Module& module, const std::string& caller,
             const std::vector<ProcessGroup>& ranks);
  // Throws ArgumentError if the module's parameters are not those that the groups have. The other ranks' next
  // calls in run() fail then.
  void check_parameters();
  // Follows parameters that were frozen or unfrozen, too. Throws DesyncError on all ranks unless they were on
  // all. Collective if they were.
  void check_module();
  // Whether neither forward nor backward is under way.
  bool is_between_steps() const { return !in_forward_ && !in_backward(); }
  // Makes calls of a step over these ranks. If they fail, those of the other ranks end, too.
  template <typename Calls>
  auto run(const ProcessGroup& ranks, const Calls& calls) const {
    const auto* const agreement = agreement_of(ranks);
    return agreement == nullptr ? calls()
                                : end_all_on_failure_in(*agreement, [&] { return agreement->run(calls); });
  }

 private:
  // The outermost module, unless it is in no shared_ptr.
  struct Watched {
    std::weak_ptr<const torch::nn::Module> module;
    device::ModuleSnapshot known;
  };

  const modules::ChangeAgreement* agreement_of(const ProcessGroup& ranks) const;
  [[noreturn]] void refuse(const std::string& change) const;
  // A failure in one group of ranks ends the calls in all of them, such as the shard groups of HSDP.
  template <typename Calls>
  auto end_all_on_failure_in(const modules::ChangeAgreement& failing, const Calls& calls) const {
    try {
      return calls();
    } catch (const PeerLost&) {  // the others notice it themselves
      throw;
    } catch (const TimeoutError&) {
      throw;
    } catch (const std::exception& error) {
      for (const auto& each : agreements_)
        if (&each != &failing) each.end_others(error.what());
      throw;
    }
  }
  void confirm(const std::string& change);
  void wait_for_ranks_of(const ParameterGroup& group);
  void write_trace(const ParameterGroup& group);
  void trace_wait(const std::string& name, const CallTimes& call);
  void end_step();
  bool in_backward() const { return !pass_.expired(); }
  void switch_to(ParameterGroup& group);
  void prefetch_after(const ParameterGroup& group);

  struct Split {
    c10::intrusive_ptr<c10d::Backend> of;
    ProcessGroup own;
  };
  struct SplitOnHosts {
    c10::intrusive_ptr<c10d::Backend> of;
    std::shared_ptr<const HostSplit> own;
  };

  std::string failure_;
  std::optional<Watched> watched_;
  std::string caller_;                                // of watch()
  std::vector<modules::ChangeAgreement> agreements_;  // one for each group of ranks
  tracing::StepClock clock_;
  tracing::StepTrace trace_{{"compute", "reductions", "gathers"}};
  bool in_forward_ = false;  // that gradients follow
  bool reduces_ = false;     // in this pass
  double barrier_wait_ = 0;  // in this step, in milliseconds
  double barrier_wait_last_ = 0;
  double barrier_wait_total_ = 0;
  std::vector<Split> splits_;
  std::vector<SplitOnHosts> host_splits_;
  ParameterGroup* current_ = nullptr;
  std::weak_ptr<void> pass_;  // expired: no backward pass is under way
  ParameterGroup* reducing_ = nullptr;
  std::vector<ParameterGroup*> order_;          // in this pass
  std::vector<ParameterGroup*> forward_order_;  // in the last
  std::vector<ParameterGroup*> backward_order_;
};

}  // namespace lockstep::fsdp
