// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/mutex.h>
#include <lockstep/comm/backend.h>
#include <lockstep/comm/process_group.h>

#include "base/throw_error.h"
#include "comm/call.h"
#include "comm/call_rules.h"
#include "comm/non_member.h"
#include "comm/stream_watch.h"
#include "node/flight_recorder.h"
#include "node/node_group.h"

namespace lockstep::comm {

// Note [Groups that are replaced]
//
// reconfigure() returns a new group. replace() has all copies of the former one refer to it from then on, wherever
// they are: in wrappers, layers and the program. A copy keeps the GroupState that it was made with, and a
// replaced state leads to the present one in a single step, however often the group was formed: all states of a
// line of groups share one Replacement. Only copies keep a replaced state alive.
//
// So state_of() of one copy changes in replace(). What keeps a state beyond a call, as a PendingCall does, keeps
// the one that it has used.

// The state that all copies of one ProcessGroup share.
class GroupState {
 public:
  GroupState(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info);
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;
  // The present one, until the next replace(). Throws ArgumentError on a rank outside of the group; `where`: the
  // line of the call.
  static const std::shared_ptr<GroupState>& present(const ProcessGroup& group,
                                                    const std::source_location& where = {}) {
    if (!group) refuse_non_member(group, "ProcessGroup", where);
    const auto* const replaced = group.state_->replaced_.load(std::memory_order_acquire);
    return replaced == nullptr ? group.state_ : replaced->present;
  }

  // Throws Error when the group is closed.
  c10::intrusive_ptr<c10d::Backend> backend() const;
  [[noreturn]] void throw_closed(const CallRecord& call) const;
  // Without node group and membership, which are below.
  const ProcessGroupInfo& info() const { return info_; }
  std::chrono::milliseconds timeout() const { return info_.timeout; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& backend_name() const { return backend_name_; }
  node::FlightRecorder& log() { return log_; }
  // The node-local group if all ranks run on one host and the group is open, otherwise nullptr.
  std::shared_ptr<node::NodeGroup> node_group() const;
  // For a part of another group, whose dead ranks messages name too. Call it before the first call.
  void set_job(std::weak_ptr<node::NodeGroup> job) { job_ = std::move(job); }
  std::shared_ptr<node::NodeGroup> job() const { return job_.lock(); }
  const CallRules& rules() const { return rules_; }
  // The backend of the group's calls; nullptr when the group is closed. Valid until the lock ends or pauses.
  CallBackend* calls(const node::FlightRecorder::RecorderLock&) const { return calls_.get(); }
  // The same, valid as long as the result.
  std::shared_ptr<CallBackend> keep_calls(const node::FlightRecorder::RecorderLock&) const { return calls_; }
  // A number for objects that all ranks create on the group in the same order: 1, 2, ...
  std::uint64_t next_scope() { return ++scopes_; }
  // The watch if calls end on a device's stream, otherwise nullptr.
  std::shared_ptr<StreamWatch> watch() const { return watched_ ? locked_watch() : nullptr; }
  // The device of this rank's announcements, if it makes any: note [Announced calls] in announced_calls.h.
  const std::optional<c10::Device>& announces_on() const { return announces_on_; }
  void announce_on(std::optional<c10::Device> device) { announces_on_ = device; }
  // "rank 1 of 2 (group default, gloo)", "rank 1 of 2 (global rank 3, group mesh_pp, gloo)"
  const std::string& whoami() const { return whoami_; }

  void remember(const OperationPtr& operation);
  // Before close(): the other ranks learn that this one leaves the run without an error.
  void announce_end() const;
  // Closes the connections after the calls on the device's stream have ended. A backend whose calls are still
  // in progress and do not end soon is leaked: its destructor would block until their timeout.
  void close();
  // close() after an error, because of which the calls of the other ranks end too.
  void break_off();

  // Nullptr if the group cannot be formed again, or is closed.
  std::shared_ptr<Membership> membership() const;
  // Throws ArgumentError if the group cannot be formed again, Error if it is closed.
  std::shared_ptr<Membership> required_membership() const;
  // As ProcessGroup::reconfigure(). Closes this group when the new one is there.
  ProcessGroup form_again(const ReconfigureOptions& options);

  // As comm::replace().
  static void replace(const ProcessGroup& former, const ProcessGroup& formed);

 private:
  struct Replacement {
    std::shared_ptr<GroupState> present;
  };

  std::shared_ptr<StreamWatch> locked_watch() const;
  bool has_calls_under_way() LOCKSTEP_REQUIRES(mutex_);
  bool calls_end_soon() LOCKSTEP_REQUIRES(mutex_);
  bool end_watch();
  c10::intrusive_ptr<c10d::Backend> locked_backend() const;
  void shut_down(c10d::Backend& backend) const noexcept;
  void abort(c10d::Backend& backend) const noexcept;

  ProcessGroupInfo info_;
  int rank_ = 0;
  int size_ = 1;
  std::string backend_name_;
  std::string whoami_;
  std::weak_ptr<node::NodeGroup> job_;
  CallRules rules_;
  // Leads to the group in place of this one, if there is one. Every call reads it, and what stands below.
  std::atomic<const Replacement*> replaced_{nullptr};
  std::shared_ptr<CallBackend> calls_;  // under the lock of the flight recorder, as RecorderLock shows
  node::FlightRecorder log_;
  std::atomic<std::uint64_t> scopes_{0};
  std::atomic<const char*> closed_;  // what errors of later calls say
  std::optional<c10::Device> announces_on_;
  mutable Mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<node::NodeGroup> node_group_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<Membership> membership_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<std::weak_ptr<Operation>> under_way_ LOCKSTEP_GUARDED_BY(mutex_);
  bool watched_ = false;  // whether there was a watch when the group was created
  std::shared_ptr<StreamWatch> watch_ LOCKSTEP_GUARDED_BY(mutex_);
  std::jthread revoking_;  // graphs, while the backend is aborted
  // Shared with the groups that this one replaces, and with those that replace it.
  std::weak_ptr<Replacement> replaces_;
  std::shared_ptr<Replacement> replaced_by_;
};

inline const std::shared_ptr<GroupState>& present_state(const ProcessGroup& group,
                                                        const std::source_location& where = {}) {
  return GroupState::present(group, where);
}
inline GroupState& state_of(const ProcessGroup& group) { return *present_state(group); }

// What an error says about these ranks of the group.
inline ErrorDetails about(const ProcessGroup& group, std::vector<int> ranks = {}) {
  return {.ranks = std::move(ranks), .group = state_of(group).info().name};
}
inline Reporter reporter_of(const ProcessGroup& group) { return {group.rank(), group.size()}; }

// From now on every copy of `former`, and of the groups that it has replaced, refers to `formed`. Closes the
// state of `former`: its calls have ended, and no other thread uses the group meanwhile.
void replace(const ProcessGroup& former, const ProcessGroup& formed);

// A device for small tensors of Lockstep's own: the CPU if the group's backend supports it.
c10::Device device_for_objects(const ProcessGroup& group);
// The device on which the group carries a tensor of `device`: this one, or that of the group's backend, as for a tensor of the CPU
// over nccl.
c10::Device device_that_carries(const ProcessGroup& group, c10::Device device);

// Whether other ranks of the group may run PyTorch's torch.distributed (InitOptions::with_python).
inline bool has_python_ranks(const ProcessGroup& group) { return state_of(group).info().with_python; }

// Throws ArgumentError where other ranks may run Python: `what` is called differently there.
void refuse_with_python(const GroupState& group, const std::string& what, const std::string& remedy);

}  // namespace lockstep::comm
