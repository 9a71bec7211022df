// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace lockstep {

/// What a GraphedStep is doing in this process.
enum class GraphPhase : std::uint8_t {
  none,     ///< nothing, or a replay
  warm_up,  ///< it runs a step that is to be captured later
  capture,  ///< it captures one: nothing is computed, and the device must not be waited for
};

/// Safe from any thread; of the whole process, since parts of a step run in autograd's threads.
GraphPhase graph_phase() noexcept;

/// For code that cannot be part of a graph. Throws Error unless the phase is none: "`what` cannot be captured
/// in a graph: `remedy`". So it is found in the first step, before anything is captured.
void refuse_in_graph(std::string_view what, std::string_view remedy);

/// While a step is captured: `action` is to be done after each replay of its graph, once for each `owner`, by
/// the thread that replays. For those who watch over what the graph does.
void do_at_each_replay(const void* owner, std::function<void()> action);
/// What has been asked for since the phase was last none. For GraphedStep.
std::vector<std::function<void()>> take_replay_actions();

/// Sets the phase while it lives. Throws Error where another one lives in this process.
class GraphPhaseScope {
 public:
  explicit GraphPhaseScope(GraphPhase phase);
  ~GraphPhaseScope();
  GraphPhaseScope(const GraphPhaseScope&) = delete;
  GraphPhaseScope& operator=(const GraphPhaseScope&) = delete;
};

}  // namespace lockstep
