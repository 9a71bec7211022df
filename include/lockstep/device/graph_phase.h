// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

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

/// Sets the phase while it lives. Throws Error where another one lives in this process.
class GraphPhaseScope {
 public:
  explicit GraphPhaseScope(GraphPhase phase);
  ~GraphPhaseScope();
  GraphPhaseScope(const GraphPhaseScope&) = delete;
  GraphPhaseScope& operator=(const GraphPhaseScope&) = delete;
};

}  // namespace lockstep
