// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "fsdp/group_splits.h"
#include "fsdp/step_record.h"
#include "modules/change_agreement.h"

namespace lockstep::fsdp {

// The calls that the ranks of a tree make together. A function with one as argument is called with the
// tree's mutex held: only the tree has it.
class StepCalls {
 public:
  StepRecord record;
  GroupSplits splits;

  // Collective for ranks that it does not have yet.
  void add(const std::vector<ProcessGroup>& ranks);
  // Takes what ranks agree by from `other`.
  void adopt(StepCalls& other);
  // Begins anew over the same groups, which have been formed again: without records, in the first step.
  void rejoin();

  // Makes calls of a step over these ranks. If they fail, those of the other ranks end, too.
  template <typename Calls>
  auto run(const ProcessGroup& ranks, const Calls& calls) const {
    const auto* const agreement = agreement_of(ranks);
    return agreement == nullptr ? calls()
                                : end_all_on_failure_in(*agreement, [&] { return agreement->run(calls); });
  }
  // Throws ArgumentError. The other ranks' next calls in run() fail.
  [[noreturn]] void refuse(const std::string& why) const;
  // See modules::ChangeAgreement. Collective.
  void confirm(const std::string& change, const modules::ModuleText& now, std::source_location where);

 private:
  const modules::ChangeAgreement* agreement_of(const ProcessGroup& ranks) const;
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

  std::vector<modules::ChangeAgreement> agreements_;  // one for each group of ranks
};

}  // namespace lockstep::fsdp
