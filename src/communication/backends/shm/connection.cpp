// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/connection.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "base/limits.h"
#include "base/throw_error.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kPage = 4096;

// The first page of a mapped piece.
struct MappingCount {
  std::atomic<int> left;  // mappings that are not released
};

MappingCount& count_of(std::byte* piece) { return *std::launder(reinterpret_cast<MappingCount*>(piece)); }

Communicator communicator_of(const std::shared_ptr<node::NodeGroup>& group) {
  std::vector<std::byte*> segments, heaps;
  for (int rank = 0; rank < group->size(); ++rank) {
    segments.push_back(group->backend_part(rank));
    heaps.push_back(group->heap(rank));
  }
  return {group->rank(), std::move(segments), std::move(heaps), group->own_heap_bytes(),
          RankObserver{.find_dead = [group] { return group->find_dead(); },
                       .is_refused = [group] { return !group->refusals().empty(); },
                       .owner = group->owner(),
                       .name_of = [group](int rank) { return group->name_of(rank); },
                       .details_of = [group](const auto& ranks) { return group->details_of(ranks); }}};
}

}  // namespace

node::NodeGroup::Part Connection::part(int size, const std::shared_ptr<Heap>& heap) {
  if (static_cast<std::size_t>(size) > kMostRanks)
    throw_error<ArgumentError>("the shm backend joins at most {} ranks of a host, not {}; use gloo",
                               kMostRanks, size);
  return {.bytes = Layout(size).bytes(), .committed = sizeof(ControlBlock), .heap = [heap] {
            return heap->memory();
          }};
}

std::shared_ptr<Heap> make_heap(int size) { return std::make_shared<Heap>(shareable_bytes(size)); }

Connection::Connection(std::shared_ptr<node::NodeGroup> group, std::shared_ptr<Heap> heap,
                       WaitPolicy wait_policy)
    : group_(std::move(group)), heap_(std::move(heap)), engine_(communicator_of(group_), wait_policy) {}

std::int64_t Connection::allocate_mapped(std::size_t bytes) {
  const MutexLock lock(mapped_mutex_);
  free_unmapped();
  auto* const piece = heap_->allocate(kPage + bytes);
  new (piece) MappingCount{engine_.communicator().size()};
  mapped_.push_back(piece);
  return engine_.communicator().heap_offset_of(piece, kPage + bytes);
}

void Connection::free_unmapped() {
  std::erase_if(mapped_, [&](std::byte* piece) {
    if (count_of(piece).left.load(std::memory_order_acquire) > 0) return false;
    heap_->free(piece);
    return true;
  });
}

std::byte* Connection::map(int owner, std::int64_t place) {
  return engine_.communicator().heap(owner) + place + kPage;
}

void Connection::release(std::byte* mapping) {
  count_of(mapping - kPage).left.fetch_sub(1, std::memory_order_release);
}

}  // namespace lockstep::shm
