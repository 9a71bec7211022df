// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>

#include <lockstep/device/graph_phase.h>
#include <lockstep/device/revocable_graph.h>

namespace lockstep::graphs {

class OperatorTrace;

// What the threads of one step share while a GraphedStep warms it up or captures it: the thread that called,
// those in which autograd runs its backward passes, and whoever else takes over LibTorch's ThreadLocalState.
struct GraphWork : c10::DebugInfoBase {
  explicit GraphWork(GraphPhase now)
      : phase(now), graph(now == GraphPhase::capture ? std::make_shared<RevocableGraph>() : nullptr) {}

  std::atomic<GraphPhase> phase;  // none once the scope has ended, for those who keep the state of a thread
  const std::shared_ptr<RevocableGraph> graph;  // that is being captured
  std::mutex mutex;
  OperatorTrace* trace = nullptr;  // under mutex, held while an operator is added: it ends with Tracing
  std::vector<std::pair<const void*, std::function<void()>>> replay_actions;
};

// That of this thread, or nullptr.
GraphWork* graph_work() noexcept;

}  // namespace lockstep::graphs
