// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

namespace lockstep::ddp {

// While it lives, this thread runs a backward pass inside of another one.
class NestedBackward {
 public:
  NestedBackward();
  // Back in the outer one, which then gets what was left for it; nothing when an exception ends it.
  ~NestedBackward();
  NestedBackward(const NestedBackward&) = delete;
  NestedBackward& operator=(const NestedBackward&) = delete;

 private:
  int exceptions_;
};

// Calls `function` in the outermost backward pass: at once, or when the nested ones have ended.
void in_outer_backward(std::function<void()> function);

}  // namespace lockstep::ddp
