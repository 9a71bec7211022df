// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_phase.h>

namespace lockstep {
namespace {

std::atomic<GraphPhase>& phase_of_process() {
  static std::atomic<GraphPhase> phase{GraphPhase::none};
  return phase;
}

// Of the one capture that there can be in a process.
struct ReplayActions {
  std::mutex mutex;
  std::vector<std::pair<const void*, std::function<void()>>> actions;
};

ReplayActions& replay_actions() {
  static ReplayActions actions;
  return actions;
}

}  // namespace

GraphPhase graph_phase() noexcept { return phase_of_process().load(std::memory_order_acquire); }

void refuse_in_graph(std::string_view what, std::string_view remedy) {
  if (graph_phase() == GraphPhase::none) return;
  throw Error(fmt::format("GraphedStep: {} cannot be captured in a graph: {}", what, remedy));
}

void do_at_each_replay(const void* owner, std::function<void()> action) {
  auto& [mutex, actions] = replay_actions();
  const std::lock_guard lock(mutex);
  if (std::ranges::any_of(actions, [&](const auto& other) { return other.first == owner; })) return;
  actions.emplace_back(owner, std::move(action));
}

std::vector<std::function<void()>> take_replay_actions() {
  auto& [mutex, actions] = replay_actions();
  const std::lock_guard lock(mutex);
  std::vector<std::function<void()>> taken;
  for (auto& [owner, action] : actions) taken.push_back(std::move(action));
  actions.clear();
  return taken;
}

GraphPhaseScope::GraphPhaseScope(GraphPhase phase) {
  auto none = GraphPhase::none;
  if (phase_of_process().compare_exchange_strong(none, phase)) return;
  throw Error(
      "GraphedStep: another thread of this process warms up or captures a step at the moment, or a step "
      "calls "
      "another one; one at a time: give each rank a process of its own");
}

GraphPhaseScope::~GraphPhaseScope() {
  take_replay_actions();  // of a capture that failed
  phase_of_process().store(GraphPhase::none, std::memory_order_release);
}

}  // namespace lockstep
