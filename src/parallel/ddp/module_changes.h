// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "ddp/buffer_sync.h"
#include "ddp/option_rules.h"
#include "ddp/reducer.h"
#include "modules/module_watch.h"

namespace lockstep::ddp {

// Note [Changes of the module]
//
// Before a forward that will be reduced, DistributedDataParallel compares the module with what its buckets
// were built on (modules::ModuleWatch). If nothing has changed, no call is made. A rank whose module has
// changed must learn whether the others' have changed as well, while a rank without a change runs its step:
//
// - on_host: it abandons the step in the node-local group, with the change as the reason. It waits until each
//   other rank has done so, too, or has entered its forward. The waits of ranks without the change end.
// - in_gradients: it makes the step's calls with zeros and reports a failed step (note [Failed steps]).
// - by_a_call: it makes the call by which the ranks compare their new modules. A rank without the change
//   makes another call, which ends with an error of the backend, at the latest at the timeout.
//
// If all ranks have changed, they compare the new modules and begin anew with new buckets.

// Notices changes of a wrapped module, and agrees on them with the other ranks.
class ModuleChanges {
 public:
  // The first three outlive it.
  ModuleChanges(const WrappedTensors& tensors, const BufferSync& buffers, const ProcessGroup& group,
                Features features, std::source_location where)
      : tensors_(tensors), buffers_(buffers), group_(group), features_(features), where_(where) {}

  // Compares with the module as it is now. See modules::ModuleWatch.
  void watch(const modules::ModuleWatch::Accumulators& accumulators) {
    watch_.emplace(tensors_.module(), accumulators);
  }
  bool are_none(bool types) const { return watch_->is_unchanged(types); }
  // `converted`: a parameter that has been converted, and perhaps back.
  std::vector<modules::ModuleChange> find(bool types, const std::optional<std::string>& converted) const;

  // The step in which the ranks without a change are.
  struct Step {
    Reducer* reducer;  // nullptr: all parameters are delayed
    bool follows;      // a forward of all ranks that have not changed follows, with its backward
    bool reduces;      // its backward has buckets
  };
  // Returns if all ranks have the same changes; otherwise throws an error on all. Collective.
  void agree_on(const std::vector<modules::ModuleChange>& changes, const Step& step) const;
  // Throws ArgumentError.
  void check_can_follow(const std::vector<modules::ModuleChange>& changes, const Reducer* reducer) const;

  // New parameters have gradients that no hook marks: optimizers refuse to use them.
  void refuse_new_parameters();
  bool has_new_parameters() const { return !new_parameters().empty(); }

 private:
  [[noreturn]] void refuse_on_all_ranks(const std::string& change, const Reducer* reducer,
                                        bool in_capture) const;
  std::vector<std::string> report_in_gradients(const std::string& change, Reducer& reducer) const;
  std::vector<modules::NamedTensor> new_parameters() const;
  std::string whoami() const;

  const WrappedTensors& tensors_;
  const BufferSync& buffers_;
  const ProcessGroup& group_;
  Features features_;
  std::source_location where_;
  std::optional<modules::ModuleWatch> watch_;
  std::shared_ptr<void> refuses_new_parameters_;  // in optimizers' steps
};

}  // namespace lockstep::ddp
