// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include "ddp/failed_step.h"

namespace lockstep::ddp {

// In a join, on a rank without data: makes the calls of a step of the others with zeros. The reducer's lock
// protects it.
class JoinShadow {
 public:
  // The arguments outlive it.
  JoinShadow(StepCalls& calls, const FailedStep& failed) : calls_(calls), failed_(failed) {}

  // The calls of a backward. StepCalls::begin() precedes.
  void make_calls();
  // The calls of an iteration as the ranks with data announce them, see note [Announced calls]. `on_reduced`
  // is called when those of a backward have been made. StepCalls::begin() precedes.
  void make_announced_calls(const std::function<void()>& on_reduced);

 private:
  void finish();

  StepCalls& calls_;
  const FailedStep& failed_;
  modules::StepAbort& abort_ = calls_.abort();
};

}  // namespace lockstep::ddp
