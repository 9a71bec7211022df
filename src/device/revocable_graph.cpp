// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/device/revocable_graph.h>

#include "device/graph_work.h"

namespace lockstep {

void RevocableGraph::set(std::unique_ptr<DeviceGraph> graph) {
  const std::lock_guard lock(mutex_);
  if (!reason_) graph_ = std::move(graph);
}

void RevocableGraph::replay() {
  const std::lock_guard lock(mutex_);
  if (reason_) std::rethrow_exception(reason_);
  graph_->replay();
}

void RevocableGraph::revoke(std::exception_ptr reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = std::move(reason);
  graph_.reset();
}

std::shared_ptr<RevocableGraph> graph_under_capture() {
  auto* work = graphs::graph_work();
  return work == nullptr ? nullptr : work->graph;
}

}  // namespace lockstep
