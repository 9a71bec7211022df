// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/team.h"

#include <lockstep/base/futex.h>

namespace lockstep::shm {

Team::Team(int rank, std::vector<std::byte*> segments, std::size_t segment_bytes, RankNews news)
    : rank_(rank),
      segments_(std::move(segments)),
      own_(reinterpret_cast<Area*>(segment(rank))),
      layout_(static_cast<int>(segments_.size())),
      heap_bytes_(segment_bytes - layout_.heap_offset()),
      news_(std::move(news)) {
  // Zero bytes are the initial state of everything in an area.
  areas_.reserve(segments_.size());
  for (auto* start : segments_) areas_.push_back(reinterpret_cast<Area*>(start));
}

Channel& Team::channel(int from, int to) const {
  return *reinterpret_cast<Channel*>(segment(from) + Layout::channel_offset(static_cast<std::size_t>(to)));
}

std::int64_t Team::heap_offset_of(const std::byte* data, std::size_t bytes) const {
  const auto* const start = heap(rank_);
  const std::less_equal<> not_after;
  if (!not_after(start, data) || !not_after(data + bytes, start + heap_bytes_)) return -1;
  return data - start;
}

void Team::ring() const {
  // Either this sees the sleeper, or the sleeper sees what was published: both sides have a full fence
  // between their store and their load.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring_softly();
}

void Team::ring_softly() const {
  for (auto* area : areas_) {
    if (area == own_ || area->sleepers.load(std::memory_order_relaxed) == 0) continue;
    area->bell.fetch_add(1, std::memory_order_relaxed);
    futex_wake_all(area->bell);
  }
}

int Team::find_dead() const {
  const int dead = news_.find_dead ? news_.find_dead() : -1;
  return dead >= 0 && area(dead).left.load(std::memory_order_acquire) != 0 ? -1 : dead;
}

std::string Team::name_of(int rank) const {
  return news_.name_of ? news_.name_of(rank) : "rank " + std::to_string(rank);
}

void Team::fail(Verdict::Cause cause, int culprit, std::uint64_t call) const {
  auto& verdict = area(0).verdict;
  std::uint32_t none = 0;
  if (!verdict.state.compare_exchange_strong(none, 1)) return;
  verdict.cause = cause;
  verdict.reporter = rank_;
  verdict.culprit = culprit;
  verdict.call = call;
  verdict.state.store(2, std::memory_order_release);
  for (auto* area : areas_) {
    area->bell.fetch_add(1, std::memory_order_relaxed);
    futex_wake_all(area->bell);
  }
}

const Verdict* Team::verdict() const {
  const auto& verdict = area(0).verdict;
  return verdict.state.load(std::memory_order_acquire) == 2 ? &verdict : nullptr;
}

}  // namespace lockstep::shm
