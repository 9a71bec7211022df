// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/mutex.h>

#include "base/liveness.h"
#include "comm/peer_check.h"
#include "node/thread_exchange.h"

namespace lockstep::backends {

// Tells the members that form a group when one of them is dead or has given up. Each looks at the processes
// that it can see, and tells the others through the store. Safe from any thread.
class FormingWatch {
 public:
  // [rank]: the process of each member. `store`: of this forming. `threads`: of ranks that are threads.
  FormingWatch(std::vector<ProcessIdentity> members, c10::intrusive_ptr<c10d::Store> store,
               std::shared_ptr<node::ThreadExchange> threads);

  // What has happened to a member: "rank 2 (pid 4711 on node7) is dead". Empty if nothing is known. Polls
  // every 20 ms at most, at some of the processes; so not at all in a forming that takes a few milliseconds.
  std::string find_lost();
  // What has happened to a member, for after an error that its end may have caused. Polls all processes,
  // and waits up to 200 ms for the other members' reports. Empty if nothing is known.
  std::string find_cause() noexcept;
  // Ends the waits of the other members with this text.
  void report(const std::string& text) noexcept;

 private:
  std::string poll(int most) LOCKSTEP_REQUIRES(mutex_);
  std::string find_dead(int most) LOCKSTEP_REQUIRES(mutex_);

  std::vector<ProcessIdentity> members_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<node::ThreadExchange> threads_;
  Mutex mutex_;
  comm::PeerCheckTimer check_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t next_member_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::string lost_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backends
