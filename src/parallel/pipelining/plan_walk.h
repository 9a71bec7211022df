// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/pipelining/schedule.h>

namespace lockstep::pipelining {

// Calls f(part) for each part of an OVERLAP_F_B, or f(action).
void for_each_part(const Action& action, const auto& f) {
  if (action.sub_actions.empty()) return f(action);
  for (const auto& part : action.sub_actions) f(part);
}

// Whether its actions are of one micro-batch.
inline bool has_microbatch(ComputationType type) {
  return type != ComputationType::UNSHARD && type != ComputationType::RESHARD &&
         type != ComputationType::REDUCE_GRAD;
}
inline bool is_backward(ComputationType type) {
  return type == ComputationType::FULL_BACKWARD || type == ComputationType::BACKWARD_INPUT;
}
// The last action of a micro-batch in a stage.
inline bool ends_backward(ComputationType type) {
  return type == ComputationType::FULL_BACKWARD || type == ComputationType::BACKWARD_WEIGHT;
}
inline bool is_send(ComputationType type) {
  return type == ComputationType::SEND_F || type == ComputationType::SEND_B;
}
inline bool is_recv(ComputationType type) {
  return type == ComputationType::RECV_F || type == ComputationType::RECV_B;
}

// A value for each stage and micro-batch. T is not bool: std::vector<bool> has no references.
template <typename T>
class PerMicrobatch {
 public:
  PerMicrobatch(const Plan& plan, T value)
      : microbatches_(static_cast<std::size_t>(plan.n_microbatches)),
        values_(static_cast<std::size_t>(plan.num_stages) * microbatches_, value) {}
  T& at(int stage, int microbatch) {
    return values_.at(static_cast<std::size_t>(stage) * microbatches_ + static_cast<std::size_t>(microbatch));
  }
  T& at(const Action& action) { return at(action.stage_index, *action.microbatch_index); }

 private:
  std::size_t microbatches_;
  std::vector<T> values_;
};

}  // namespace lockstep::pipelining
