// SPDX-License-Identifier: BSD-3-Clause

// What a rank without data does for the others' iterations in a join.
#include <numeric>
#include <utility>

#include "comm/announced_calls.h"
#include "ddp/reducer.h"

namespace lockstep::ddp {

void Reducer::shadow_backward() {
  const std::lock_guard lock(mutex_);
  const auto listening = abort_.listen();
  begin_buckets();
  finish_shadow();
}

void Reducer::shadow_announced_calls() {
  const std::lock_guard lock(mutex_);
  const auto device = parameters_.front().tensor.device();
  begin_buckets();
  while (true) {
    const auto listening = abort_.listen();
    const auto next = comm::await_announcement(group_, device);
    switch (next.kind) {
      using enum comm::Announcement::Kind;
      case all_gather:
      case all_reduce:
        comm::repeat_with_zeros(next, group_, device);
        break;
      case bucket:
        while (step_.next_bucket < buckets_.size() && std::cmp_less_equal(step_.next_bucket, next.count)) {
          contribute(step_.next_bucket++, Contribution::zeros);
        }
        break;
      case end_of_reductions:
        finish_shadow();
        break;
      case end_of_iteration:
        return;
    }
  }
}

void Reducer::finish_shadow() {
  const bool announced = complete_with(Contribution::zeros);
  if (finds_unused()) used_.clear();
  if (announced) abort_.throw_if_any(abort_.exchange_reasons(""));
  abort_.end_step();
  if (trace_.is_on()) trace_.end_step();  // as on the ranks that have data
  if (!learns_order()) return;
  learned_.ready_order.resize(parameters_.size());
  std::iota(learned_.ready_order.begin(), learned_.ready_order.end(), 0);
  learned_.order = Learned::Order::known;
}

}  // namespace lockstep::ddp
