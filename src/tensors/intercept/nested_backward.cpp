// SPDX-License-Identifier: BSD-3-Clause
#include "intercept/nested_backward.h"

#include <array>
#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/graph_task.h>

namespace lockstep::intercept {
namespace {

struct Nesting {
  int depth = 0;
  std::vector<std::function<void()>> deferred = {};
};

Nesting& nesting() {
  thread_local Nesting here;
  return here;
}

// More than run at once in the threads of a process.
constexpr std::size_t kBackwards = 64;

std::atomic<int>& wrapped_backward(int backward) {
  static std::array<std::atomic<int>, kBackwards> last;  // 0: none, as the numbers here begin at 1
  return last[static_cast<std::size_t>(backward) % kBackwards];
}

}  // namespace

NestedBackward::NestedBackward() : exceptions_(std::uncaught_exceptions()) { ++nesting().depth; }

NestedBackward::~NestedBackward() {
  auto& here = nesting();
  if (--here.depth > 0) return;
  const auto deferred = std::exchange(here.deferred, {});
  if (std::uncaught_exceptions() > exceptions_) return;
  for (const auto& function : deferred) function();
}

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

void note_wrapped_backward() {
  if (const int backward = current_backward(); backward >= 0) wrapped_backward(backward) = backward + 1;
}

bool is_wrapped_backward(int backward) { return backward >= 0 && wrapped_backward(backward) == backward + 1; }

void in_outer_backward(std::function<void()> function) {
  auto& here = nesting();
  if (here.depth == 0) {
    function();
  } else {
    here.deferred.push_back(std::move(function));
  }
}

}  // namespace lockstep::intercept
