// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>

#include <lockstep/base/mutex.h>
#include <lockstep/graphs/graphed_step.h>

#include "graphs/graph_phase.h"

namespace lockstep {

// A graph that another thread can destroy: an NCCL communicator can neither close nor abort while a graph
// contains its calls. Thread-safe.
class RevocableGraph {
 public:
  // Called once, after the capture. Destroys `graph` when this object was revoked meanwhile.
  void set(std::unique_ptr<DeviceGraph> graph) {
    const MutexLock lock(mutex_);
    if (!reason_) graph_ = std::move(graph);
  }
  // Queues the graph on the current stream. Throws the reason of revoke().
  void replay() {
    const MutexLock lock(mutex_);
    if (reason_) std::rethrow_exception(reason_);
    graph_->replay();
  }
  // Destroys the graph, which waits for its last replay. The first reason stays.
  void revoke(std::exception_ptr reason) {
    const MutexLock lock(mutex_);
    if (!reason_) reason_ = std::move(reason);
    graph_.reset();
  }

 private:
  Mutex mutex_;
  std::unique_ptr<DeviceGraph> graph_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr reason_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The graph that the calling thread captures; null when it captures none.
std::shared_ptr<RevocableGraph> graph_under_capture();

}  // namespace lockstep

namespace lockstep::graphs {

class OperatorTrace;

// The state of one warm-up or capture, shared by the calling thread, autograd's threads in the backward
// passes, and other threads with the caller's at::ThreadLocalState.
struct GraphContext : c10::DebugInfoBase {
  explicit GraphContext(GraphPhase now)
      : phase(now), graph(now == GraphPhase::capture ? std::make_shared<RevocableGraph>() : nullptr) {}

  std::atomic<GraphPhase> phase;  // none after the scope, for threads that keep the ThreadLocalState
  const std::shared_ptr<RevocableGraph> graph;  // null unless capturing
  Mutex mutex;
  OperatorTrace* trace LOCKSTEP_GUARDED_BY(mutex) = nullptr;
  std::vector<std::pair<const void*, std::function<void()>>> replay_actions LOCKSTEP_GUARDED_BY(mutex);
};

// The calling thread's, or null.
GraphContext* graph_context() noexcept;

}  // namespace lockstep::graphs
