// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep {

// What a GraphedStep does with the step that the calling thread runs.
enum class GraphPhase : std::uint8_t {
  none,     // nothing, or a replay
  warm_up,  // runs the step eagerly, to capture it later
  capture,  // captures it: kernels do not run, and the device must not be synchronized
};

// The phase of the thread that called the GraphedStep and of the threads that work for it: autograd's threads
// in the step's backward passes, DataParallel's, and any other with its at::ThreadLocalState. Other threads,
// such as data loaders and checkpoint writers, are in phase none.
GraphPhase graph_phase() noexcept;

// For code that a graph cannot contain. Throws Error in every phase but none: "`what` cannot be captured in a
// graph: `remedy`". The error is thrown in the first warm-up step, before a capture.
void refuse_in_graph(std::string_view what, std::string_view remedy);

// During a capture: makes the thread that replays the graph call `action` after each replay, once per
// `owner`. Does nothing in phase none.
void add_replay_action(const void* owner, std::function<void()> action);
// Returns and clears the actions of the current scope.
std::vector<std::function<void()>> take_replay_actions();

// Sets the phase of this thread during its lifetime; a stack variable. Throws Error within another scope.
// Captures of several threads run one at a time; a thread waits for at most ten minutes.
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
