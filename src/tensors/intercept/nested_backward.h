// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

// Which backward pass a thread runs, and whether it is nested in another one.
namespace lockstep::intercept {

// While it lives, this thread runs a backward pass nested in another one.
class NestedBackward {
 public:
  NestedBackward();
  // Runs the deferred functions if this was the last nested backward and no exception ended it.
  ~NestedBackward();
  NestedBackward(const NestedBackward&) = delete;
  NestedBackward& operator=(const NestedBackward&) = delete;

 private:
  int exceptions_;
};

// The backward pass that runs on this thread, or a negative number. A later one has a higher number.
int current_backward();
// A wrapper averages the gradients of the backward pass that runs on this thread, or has them accumulate.
void note_wrapped_backward();
// Whether one does, in one of the last backward passes.
bool is_wrapped_backward(int backward);

// Calls `function` in the outermost backward pass: at once, or when the nested ones have ended.
void in_outer_backward(std::function<void()> function);

}  // namespace lockstep::intercept
