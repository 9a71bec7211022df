// SPDX-License-Identifier: BSD-3-Clause
#include "graphs/graph_phase.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "base/throw_error.h"
#include "device/libtorch_versions.h"
#include "graphs/revocable_graph.h"

namespace lockstep {
namespace {

using graphs::graph_context;
using graphs::GraphContext;

constexpr std::chrono::minutes kCaptureTimeout{10};
constexpr std::string_view kKindName = "LOCKSTEP_GRAPH";
const c10::DebugInfoKind kKind = libtorch::debug_info_kind(&kKindName);

// Every call asks for the phase, and outside of a GraphedStep this is all that it costs.
std::atomic<int> active_scopes{0};

// A capture synchronizes the device before it starts, which would break another thread's capture. The lock guards
// no data and waits for a limited time, so it is none of Note [Checked locks].
std::unique_lock<std::timed_mutex> lock_capture() {
  static std::timed_mutex mutex;
  std::unique_lock lock(mutex, kCaptureTimeout);
  if (lock) return lock;
  throw_error<Error>(
      "GraphedStep: another thread of this process has been capturing a step for {} minutes; captures of "
      "several threads run one at a time",
      kCaptureTimeout.count());
}

}  // namespace

namespace graphs {

GraphContext* graph_context() noexcept {
  auto* info = c10::ThreadLocalDebugInfo::get(kKind);
  return info == nullptr ? nullptr : dynamic_cast<GraphContext*>(info);
}

}  // namespace graphs

std::shared_ptr<RevocableGraph> graph_under_capture() {
  auto* context = graph_context();
  return context == nullptr ? nullptr : context->graph;
}

GraphPhase graph_phase() noexcept {
  if (active_scopes.load(std::memory_order_relaxed) == 0) return GraphPhase::none;
  const auto* context = graph_context();
  return context == nullptr ? GraphPhase::none : context->phase.load(std::memory_order_acquire);
}

void refuse_in_graph(std::string_view what, std::string_view remedy) {
  if (graph_phase() == GraphPhase::none) return;
  throw_error<Error>("GraphedStep: {} cannot be captured in a graph: {}", what, remedy);
}

void add_replay_action(const void* owner, std::function<void()> action) {
  auto* context = graph_context();
  if (context == nullptr) return;
  const MutexLock lock(context->mutex);
  auto& actions = context->replay_actions;
  if (std::ranges::any_of(actions, [&](const auto& other) { return other.first == owner; })) return;
  actions.emplace_back(owner, std::move(action));
}

std::vector<std::function<void()>> take_replay_actions() {
  std::vector<std::function<void()>> taken;
  auto* context = graph_context();
  if (context == nullptr) return taken;
  const MutexLock lock(context->mutex);
  for (auto& [owner, action] : context->replay_actions) taken.push_back(std::move(action));
  context->replay_actions.clear();
  return taken;
}

class GraphPhaseScope::Impl {
 public:
  explicit Impl(GraphPhase phase)
      : context_(std::make_shared<GraphContext>(phase)),
        capture_lock_(phase == GraphPhase::capture ? lock_capture() : std::unique_lock<std::timed_mutex>()),
        guard_(kKind, context_) {
    active_scopes.fetch_add(1, std::memory_order_relaxed);
  }
  ~Impl() {
    context_->phase.store(GraphPhase::none, std::memory_order_release);
    active_scopes.fetch_sub(1, std::memory_order_relaxed);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

 private:
  std::shared_ptr<GraphContext> context_;
  std::unique_lock<std::timed_mutex> capture_lock_;
  c10::DebugInfoGuard guard_;
};

GraphPhaseScope::GraphPhaseScope(GraphPhase phase) {
  if (graph_phase() != GraphPhase::none) {
    throw Error(
        "GraphedStep: a step calls another GraphedStep; call the inner step directly: it is captured with "
        "the outer one");
  }
  impl_ = std::make_unique<Impl>(phase);
}

GraphPhaseScope::~GraphPhaseScope() = default;

}  // namespace lockstep
