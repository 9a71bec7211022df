// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <string>

#include <lockstep/comm/backend_traits.h>
#include <lockstep/comm/c10d.h>
#include <lockstep/comm/process_group.h>

#include "comm/call_log.h"

namespace lockstep::comm {

// What all copies of one ProcessGroup share.
class GroupState {
 public:
  GroupState(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info);
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  // Throws Error when the group has been closed; `call` says for what it was wanted, or is empty.
  c10::intrusive_ptr<c10d::Backend> backend(const std::string& call = {}) const;
  const ProcessGroupInfo& info() const { return info_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& backend_name() const { return backend_name_; }
  CallLog& log() { return log_; }
  // "rank 1 of 2 (group default, gloo)"
  std::string whoami() const;

  void remember(const c10::intrusive_ptr<c10d::Work>& work);
  // Ends the connections. A backend whose calls are still under way is left behind rather than waited for:
  // its destructor would block until their timeout.
  void close();

 private:
  bool has_calls_under_way();
  void abort_backend() noexcept;

  ProcessGroupInfo info_;
  int rank_ = 0;
  int size_ = 1;
  std::string backend_name_;
  CallLog log_;
  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::deque<c10::weak_intrusive_ptr<c10d::Work>> under_way_;
};

}  // namespace lockstep::comm
