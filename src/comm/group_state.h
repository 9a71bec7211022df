// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <lockstep/comm/backend_traits.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/comm/process_group.h>

#include "comm/call_log.h"
#include "comm/direct_calls.h"
#include "comm/host_group.h"
#include "comm/issue_listener.h"
#include "comm/stream_watch.h"

namespace lockstep::comm {

// What all copies of one ProcessGroup share.
class GroupState {
 public:
  GroupState(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info);
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  // nullptr when the group has been closed.
  c10::intrusive_ptr<c10d::Backend> living_backend() const;
  // These throw Error then.
  c10::intrusive_ptr<c10d::Backend> backend() const;
  c10::intrusive_ptr<c10d::Backend> backend_for(const CallRecord& call) const;
  const ProcessGroupInfo& info() const { return info_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& backend_name() const { return backend_name_; }
  CallLog& log() { return log_; }
  // Where all ranks run on one host and the group is open; else nullptr.
  std::shared_ptr<HostGroup> host_group() const;
  // The backend, where it wants to know the calls' numbers; else nullptr.
  IssueListener* listener() const { return listener_; }
  // The backend, where it can do calls directly, calls need not be compared first and the group is open; else
  // nullptr. Good until the turn ends.
  DirectCalls* direct(const CallLog::Turn&) const { return direct_; }
  // While held, it is good after the turn too.
  c10::intrusive_ptr<c10d::Backend> keep_direct(const CallLog::Turn&) const { return kept_direct_; }
  // A number for something that all ranks make on the group, in the same order: 1, 2, ...
  std::uint64_t next_scope() { return ++scopes_; }
  // Where calls end on a device's stream; else nullptr.
  std::shared_ptr<StreamWatch> watch() const;
  // "rank 1 of 2 (group default, gloo)"
  std::string whoami() const;

  void remember(const c10::intrusive_ptr<c10d::Work>& work);
  // Ends the connections, once the device has done what ends on its stream. A backend whose calls are still
  // under way, and do not end soon, is left behind: its destructor would block until their timeout.
  void close();

 private:
  bool has_calls_under_way();
  bool calls_end_soon();
  bool end_watch();
  void shut_down_backend() noexcept;
  void abort_backend() noexcept;

  ProcessGroupInfo info_;
  int rank_ = 0;
  int size_ = 1;
  std::string backend_name_;
  IssueListener* listener_ = nullptr;
  DirectCalls* direct_ = nullptr;                  // these two are changed during a turn in the log only
  c10::intrusive_ptr<c10d::Backend> kept_direct_;  // the same
  CallLog log_;
  std::atomic<std::uint64_t> scopes_{0};
  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::deque<c10::weak_intrusive_ptr<c10d::Work>> under_way_;
  bool watched_ = false;  // whether there was a watch when the group was made
  std::shared_ptr<StreamWatch> watch_;
  std::jthread revoking_;  // graphs, while the backend is aborted
};

}  // namespace lockstep::comm
