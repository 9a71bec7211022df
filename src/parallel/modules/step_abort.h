// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/ScopeExit.h>

#include <lockstep/comm/process_group.h>

#include "base/deadline.h"
#include "node/node_group.h"

namespace lockstep::modules {

// How ranks learn that another rank's step of one DistributedDataParallel failed: on one host through the
// node-local group, at any time; otherwise by exchange_reasons(), which all ranks call at the same place. The
// functions that need the node-local group do nothing without one.
class StepAbort {
 public:
  // All ranks make theirs in the same order.
  explicit StepAbort(ProcessGroup group);

  // Whether there is a node-local group.
  bool is_local() const;

  // While the result lives, this rank's waits end when another one aborts the step.
  [[nodiscard]] auto listen() const {
    set_scope(scope());
    return c10::make_scope_exit([this] { set_scope(0); });
  }

  // listen() without an end.
  void begin_listening() const { set_scope(scope()); }
  void end_listening() const { set_scope(0); }
  // begin_listening() for the forward of a step; the other ranks see that this rank has begun it.
  void begin_forward();

  // All ranks have left the step.
  void end_step() {
    ++step_;
    forwards_ = 0;
  }

  // Ends the other ranks' waits in this step with `reason`. Unless it is final, ranks that abort as well
  // complete the step's calls.
  void abort(const std::string& reason, bool is_final) const;

  // While listening: throws DesyncError with the reasons of the other ranks that have aborted this step.
  void throw_if_aborted() const;

  // After abort(): the other ranks' reasons, a line each. Waits up to two seconds for ranks that have none
  // yet.
  std::string reasons_of_others() const;

  // Aborts the step because this rank's module has changed.
  void abort_for_change(const std::string& change) const;
  // Throws DesyncError if another rank has aborted this step by abort_for_change().
  void throw_if_changed() const;
  // abort_for_change() before begin_forward(). Waits until each other rank has done the same or has begun
  // this forward. Returns [rank] = the change, empty for ranks without one. Throws PeerLost and TimeoutError.
  // Needs the node-local group.
  std::vector<std::string> exchange_changes(const std::string& change) const;

  // After abort(): whether every other rank of this host aborts the step, too. Waits up to two seconds for
  // ranks that neither do so nor wait in a call that this rank has not made; they may still.
  bool all_may_abort() const;

  // Collective. Returns [rank] = that rank's reason; empty if no rank has one.
  std::vector<std::string> exchange_reasons(const std::string& own) const;
  // Throws DesyncError unless `reasons` is empty.
  void throw_if_any(const std::vector<std::string>& reasons) const;
  // The other ranks' reasons, a line each.
  std::string to_lines(const std::vector<std::string>& reasons) const;

  // The number of the last call that this rank issued.
  std::uint64_t last_call() const;
  // The rank that was the last to issue the call, or -1.
  int last_to_issue(std::uint64_t call) const;

 private:
  std::string change_of(const node::NodeGroup& host, int rank) const;
  void await_arrival(const node::NodeGroup& host, int rank, const Deadline& deadline) const;
  std::uint64_t progress(std::uint64_t forwards) const;
  std::size_t place() const { return number_ % node::RankStatus::kProgress; }
  void set_scope(std::uint64_t scope) const;
  void throw_with(const std::string& lines, ErrorDetails about) const;
  std::uint64_t scope() const { return (number_ << 40U) + step_; }

  ProcessGroup group_;
  std::uint64_t number_;  // of this DistributedDataParallel in the group
  std::uint64_t step_ = 0;
  std::uint64_t forwards_ = 0;  // begun in this step
};

}  // namespace lockstep::modules
