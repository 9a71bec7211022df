// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include <lockstep/base/mutex.h>

#include "backends/hierarchical/call_queue.h"
#include "comm/call.h"

namespace lockstep::backends {

// Note [Messages over Gloo]
//
// A connection of two ranks is made at their first message: the ranks of a large group talk to few others. A
// rank connects to those with a lower number in Gloo's order, and waits for those with a higher one: its
// call, also an asynchronous one, then returns when the other rank has begun a message too. That could be
// one that waits for this rank:
//
//   rank 0:  irecv from 1;  send to 2           rank 1:  recv from 2;  send to 0
//
// So the messages to and from a rank start on a thread until one has started, which means that the ranks are
// connected. Messages between the same ranks start in the order of their calls, and a receive from any rank
// in that of all receives: one that waits for its connection holds up a later one from any rank.

// Thread-safe.
class Messages {
 public:
  // `network`: c10d's Gloo.
  Messages(std::shared_ptr<comm::CallBackend> network, int rank, int size);

  // Does not block. The call has a limit.
  comm::OperationPtr start(const comm::Call& call);
  // Throws TimeoutError: rank 0 with the missing ranks after `limit`, then the others with rank 0.
  void monitored_barrier(std::chrono::milliseconds limit);
  // No message starts after it.
  void end();

 private:
  class Message;
  using Start = std::shared_future<void>;
  // The messages to and from one rank.
  struct Channel {
    std::shared_ptr<std::atomic<bool>> is_connected = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<CallQueue> queue;  // while calls wait in it
    Start last_receive;                // of those in the queue
  };

  void end_idle_queues() LOCKSTEP_REQUIRES(mutex_);
  comm::OperationPtr start_note(at::Tensor& note, bool is_send, int peer, std::chrono::milliseconds limit);
  void await_all(std::chrono::milliseconds limit);
  void report_to_first(std::chrono::milliseconds limit);

  std::shared_ptr<comm::CallBackend> network_;
  int rank_;
  int size_;
  Mutex mutex_;
  std::vector<Channel> channels_ LOCKSTEP_GUARDED_BY(mutex_);  // [rank]; the last one: receives from any rank
  std::vector<Channel*> waiting_ LOCKSTEP_GUARDED_BY(mutex_);  // those with a queue
};

}  // namespace lockstep::backends
