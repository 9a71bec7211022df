// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep {

/// What a GraphedStep is doing with the step that this thread works for.
enum class GraphPhase : std::uint8_t {
  none,     ///< nothing, or a replay
  warm_up,  ///< it runs a step that is to be captured later
  capture,  ///< it captures one: nothing is computed, and the device must not be waited for
};

/// Of the thread that called the GraphedStep, and of threads that work for it: autograd's in the backward
/// passes of the step, DataParallel's, and any that has taken over its at::ThreadLocalState. All others, e.g.
/// one that loads data or writes a checkpoint meanwhile, are in no phase.
GraphPhase graph_phase() noexcept;

/// For code that cannot be part of a graph. Throws Error unless the phase is none: "`what` cannot be captured
/// in a graph: `remedy`". So it is found in the first step, before anything is captured.
void refuse_in_graph(std::string_view what, std::string_view remedy);

/// While a step is captured: `action` is to be done after each replay of its graph, once for each `owner`, by
/// the thread that replays. For those who watch over what the graph does. Does nothing in no phase.
void do_at_each_replay(const void* owner, std::function<void()> action);
/// What has been asked for in the scope around. For GraphedStep.
std::vector<std::function<void()>> take_replay_actions();

/// Sets the phase of this thread while it lives; a stack variable. Throws Error where one lives already. One
/// thread of a process captures at a time: another one waits for its turn, at most ten minutes.
class GraphPhaseScope {
 public:
  explicit GraphPhaseScope(GraphPhase phase);
  ~GraphPhaseScope();
  GraphPhaseScope(const GraphPhaseScope&) = delete;
  GraphPhaseScope& operator=(const GraphPhaseScope&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
