// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/join_shadow.h"

#include <utility>

#include "comm/announced_calls.h"

namespace lockstep::ddp {

void JoinShadow::make_calls() {
  const auto listening = abort_.listen();
  finish();
}

void JoinShadow::make_announced_calls(const std::function<void()>& on_reduced) {
  const auto device = calls_.buckets().device();
  while (true) {
    const auto listening = abort_.listen();
    const auto next = comm::await_announcement(calls_.group(), device);
    switch (next.kind) {
      using enum comm::Announcement::Kind;
      case all_gather:
      case all_reduce:
        comm::repeat_with_zeros(next, calls_.group(), device);
        break;
      case bucket:
        while (!calls_.all_started() && std::cmp_less_equal(calls_.started(), next.count))
          calls_.contribute(0);
        break;
      case end_of_reductions:
        finish();
        on_reduced();
        break;
      case end_of_iteration:
        return;
    }
  }
}

void JoinShadow::finish() {
  while (!calls_.all_started()) calls_.contribute(0);
  const bool has_failed = calls_.wait(StepCalls::Results::discard, failed_.reporting_bucket());
  if (has_failed) abort_.throw_if_any(abort_.exchange_reasons(""));
  abort_.end_step();
  if (calls_.trace().is_on()) calls_.trace().end_step();  // as on the ranks that have data
}

}  // namespace lockstep::ddp
