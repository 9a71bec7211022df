// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "graphs/graph_phase.h"
#include "graphs/revocable_graph.h"

namespace lockstep::graphs {

class OperatorTrace;

// The state of one warm-up or capture, shared by the calling thread, autograd's threads in the backward
// passes, and other threads with the caller's at::ThreadLocalState.
struct GraphContext : c10::DebugInfoBase {
  explicit GraphContext(GraphPhase now)
      : phase(now), graph(now == GraphPhase::capture ? std::make_shared<RevocableGraph>() : nullptr) {}

  std::atomic<GraphPhase> phase;  // none after the scope, for threads that keep the ThreadLocalState
  const std::shared_ptr<RevocableGraph> graph;  // null unless capturing
  std::mutex mutex;
  OperatorTrace* trace = nullptr;  // guarded by mutex
  std::vector<std::pair<const void*, std::function<void()>>> replay_actions;
};

// The calling thread's, or null.
GraphContext* graph_context() noexcept;

}  // namespace lockstep::graphs
