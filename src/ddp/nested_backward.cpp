// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/nested_backward.h"

#include <exception>
#include <utility>
#include <vector>

namespace lockstep::ddp {
namespace {

struct Nesting {
  int depth = 0;
  std::vector<std::function<void()>> left = {};  // for the outer backward
};

Nesting& nesting() {
  thread_local Nesting here;
  return here;
}

}  // namespace

NestedBackward::NestedBackward() : exceptions_(std::uncaught_exceptions()) { ++nesting().depth; }

NestedBackward::~NestedBackward() {
  auto& here = nesting();
  if (--here.depth > 0) return;
  const auto left = std::exchange(here.left, {});
  if (std::uncaught_exceptions() > exceptions_) return;
  for (const auto& function : left) function();
}

void in_outer_backward(std::function<void()> function) {
  auto& here = nesting();
  if (here.depth == 0) {
    function();
  } else {
    here.left.push_back(std::move(function));
  }
}

}  // namespace lockstep::ddp
