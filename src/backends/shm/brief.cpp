// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/brief.h"

#include <cstring>

namespace lockstep::shm {

BriefCall::BriefCall(const Team& team, const Brief& brief, std::uint64_t number)
    : team_(team), brief_(brief), number_(number) {
  auto& own = team.own();
  const auto bytes = brief.tensor.bytes;
  if (bytes > 0) std::memcpy(own.small[slot()], brief.tensor.data, bytes);
  auto& post = own.posts[slot()];
  post.what = brief.what;
  post.bytes = bytes;
  post.log_number = brief.log_number;
  post.heap_offset = -1;
  post.payload = bytes;
  post.longest_lane = bytes;
  post.number.store(number, std::memory_order_release);
}

BriefCall::Seen BriefCall::look() {
  for (; arrived_ < team_.size(); ++arrived_) {
    if (arrived_ == team_.rank()) continue;
    const auto& post = team_.area(arrived_).posts[slot()];
    if (post.number.load(std::memory_order_acquire) != number_) return Seen::not_all;
    if (post.what != brief_.what || post.bytes != brief_.tensor.bytes) return Seen::other_call;
  }
  return Seen::all;
}

void BriefCall::finish(std::vector<const void*>& rows) const {
  if (brief_.tensor.bytes > 0) {
    rows.clear();
    for (int rank = 0; rank < team_.size(); ++rank) {
      rows.push_back(rank == team_.rank() ? brief_.tensor.data : team_.area(rank).small[slot()]);
    }
    void* const out = brief_.tensor.data;
    brief_.kernel(&out, 1, rows.data(), team_.size(), brief_.tensor.bytes / brief_.width);
  }
  team_.own().completed.value.store(number_, std::memory_order_release);
}

}  // namespace lockstep::shm
