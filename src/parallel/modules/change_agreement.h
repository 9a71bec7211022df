// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <source_location>
#include <span>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "modules/agreement.h"
#include "modules/step_abort.h"

namespace lockstep::modules {

// How ranks agree on a change of what their steps work on, such as a layer that is frozen. Only a rank on
// which something has changed makes an additional call. The next call of a rank without the change ends with
// an error that names it: on one host at once, otherwise because the calls differ.
class ChangeAgreement {
 public:
  // All ranks make theirs in the same order.
  explicit ChangeAgreement(ProcessGroup group);

  const ProcessGroup& group() const { return group_; }

  // Makes calls of a step. If they fail, those of the other ranks end, too, unless a rank is lost or late.
  template <typename Calls>
  auto run(const Calls& calls) const {
    const auto listening = abort_.listen();
    try {
      return calls();
    } catch (const PeerLost&) {  // the others notice it themselves
      throw;
    } catch (const TimeoutError&) {
      throw;
    } catch (const std::exception& error) {
      end_others(error.what());
      throw;
    }
  }

  // Between these two, refuse() and end_others() of another rank end this rank's waits.
  void begin_listening() const { abort_.begin_listening(); }
  void end_listening() const { abort_.end_listening(); }

  // `change`: what has changed on this rank. Returns if all ranks call it with the same lines of `now`;
  // otherwise throws an error on all ranks, which names the change. Collective.
  void confirm(const std::string& change, const ModuleText& now, std::source_location where);

  // The ranks have left a step: what ended it does not end the next one.
  void end_step() { abort_.end_step(); }

  // Before this rank throws: ends the calls in run() and confirm() of ranks that do not refuse anything, with
  // this reason.
  void refuse(const std::string& why) const { abort_.abort(why, /*is_final=*/false); }

  // Ends the calls in run() and confirm() of the other ranks, also of those that refuse something.
  void end_others(std::string why) const;

 private:
  ProcessGroup group_;
  StepAbort abort_;
};

// run() in several groups at once: what ends the calls in one ends those in the others.
template <typename Calls>
auto run_in_all(std::span<const ChangeAgreement> agreements, const Calls& calls) {
  if (agreements.empty()) return calls();
  return agreements.front().run([&] { return run_in_all(agreements.subspan(1), calls); });
}

}  // namespace lockstep::modules
