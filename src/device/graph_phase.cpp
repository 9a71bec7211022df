// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_phase.h>

#include "device/graph_work.h"

namespace lockstep {
namespace {

using graphs::graph_work;
using graphs::GraphWork;

constexpr std::chrono::minutes kCaptureTurn{10};
constexpr std::string_view kKindName = "LOCKSTEP_GRAPH";

// A slot of our own. Before LibTorch 2.13 slots were an enum, with room for more.
template <typename Kind>
constexpr Kind kind_of_graphs() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(213);
  } else {
    return Kind(&kKindName);
  }
}

// One capture at a time: another thread's would be disturbed when this one waits for the device before its
// own.
class CaptureTurn {
 public:
  CaptureTurn() {
    std::unique_lock lock(board().mutex);
    if (!board().ended.wait_for(lock, kCaptureTurn, [] { return !board().taken; })) {
      throw Error(fmt::format(
          "GraphedStep: another thread of this process has been capturing a step for {} minutes; one "
          "captures at a time",
          kCaptureTurn.count()));
    }
    board().taken = true;
  }
  ~CaptureTurn() {
    {
      const std::lock_guard lock(board().mutex);
      board().taken = false;
    }
    board().ended.notify_one();
  }
  CaptureTurn(const CaptureTurn&) = delete;
  CaptureTurn& operator=(const CaptureTurn&) = delete;

 private:
  struct Board {
    std::mutex mutex;
    std::condition_variable ended;
    bool taken = false;
  };
  static Board& board() {
    static Board board;
    return board;
  }
};

}  // namespace

namespace graphs {

GraphWork* graph_work() noexcept {
  auto* info = c10::ThreadLocalDebugInfo::get(kind_of_graphs<c10::DebugInfoKind>());
  return info == nullptr ? nullptr : dynamic_cast<GraphWork*>(info);
}

}  // namespace graphs

GraphPhase graph_phase() noexcept {
  const auto* work = graph_work();
  return work == nullptr ? GraphPhase::none : work->phase.load(std::memory_order_acquire);
}

void refuse_in_graph(std::string_view what, std::string_view remedy) {
  if (graph_phase() == GraphPhase::none) return;
  throw Error(fmt::format("GraphedStep: {} cannot be captured in a graph: {}", what, remedy));
}

void do_at_each_replay(const void* owner, std::function<void()> action) {
  auto* work = graph_work();
  if (work == nullptr) return;
  auto& actions = work->replay_actions;
  const std::lock_guard lock(work->mutex);
  if (std::ranges::any_of(actions, [&](const auto& other) { return other.first == owner; })) return;
  actions.emplace_back(owner, std::move(action));
}

std::vector<std::function<void()>> take_replay_actions() {
  std::vector<std::function<void()>> taken;
  auto* work = graph_work();
  if (work == nullptr) return taken;
  const std::lock_guard lock(work->mutex);
  for (auto& [owner, action] : work->replay_actions) taken.push_back(std::move(action));
  work->replay_actions.clear();
  return taken;
}

class GraphPhaseScope::Impl {
 public:
  explicit Impl(GraphPhase phase)
      : work_(std::make_shared<GraphWork>(phase)),
        turn_(phase == GraphPhase::capture ? std::make_unique<CaptureTurn>() : nullptr),
        guard_(kind_of_graphs<c10::DebugInfoKind>(), work_) {}
  ~Impl() { work_->phase.store(GraphPhase::none, std::memory_order_release); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

 private:
  std::shared_ptr<GraphWork> work_;
  std::unique_ptr<CaptureTurn> turn_;
  c10::DebugInfoGuard guard_;
};

GraphPhaseScope::GraphPhaseScope(GraphPhase phase) {
  if (graph_phase() != GraphPhase::none) {
    throw Error(
        "GraphedStep: a step calls another one; leave the inner one out: it is captured with the outer one");
  }
  impl_ = std::make_unique<Impl>(phase);
}

GraphPhaseScope::~GraphPhaseScope() = default;

}  // namespace lockstep
