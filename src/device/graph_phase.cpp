// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_phase.h>

namespace lockstep {
namespace {

std::atomic<GraphPhase>& phase_of_process() {
  static std::atomic<GraphPhase> phase{GraphPhase::none};
  return phase;
}

}  // namespace

GraphPhase graph_phase() noexcept { return phase_of_process().load(std::memory_order_acquire); }

void refuse_in_graph(std::string_view what, std::string_view remedy) {
  if (graph_phase() == GraphPhase::none) return;
  throw Error(fmt::format("GraphedStep: {} cannot be captured in a graph: {}", what, remedy));
}

GraphPhaseScope::GraphPhaseScope(GraphPhase phase) {
  auto none = GraphPhase::none;
  if (phase_of_process().compare_exchange_strong(none, phase)) return;
  throw Error(
      "GraphedStep: another thread of this process warms up or captures a step at the moment, or a step "
      "calls "
      "another one; one at a time: give each rank a process of its own");
}

GraphPhaseScope::~GraphPhaseScope() { phase_of_process().store(GraphPhase::none, std::memory_order_release); }

}  // namespace lockstep
