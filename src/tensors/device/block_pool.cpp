// SPDX-License-Identifier: BSD-3-Clause
#include "device/block_pool.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <sys/mman.h>

namespace lockstep {
namespace {

std::size_t round_up(std::size_t bytes) {
  return (bytes + BlockPool::kHugePage - 1) / BlockPool::kHugePage * BlockPool::kHugePage;
}

// Maps `bytes`, a multiple of the huge page size, at an aligned address; nullptr when there is no memory.
std::byte* map_aligned(std::size_t bytes) {
  constexpr auto kPage = BlockPool::kHugePage;
  void* const whole =
      ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(whole);
  const auto before = (kPage - reinterpret_cast<std::uintptr_t>(begin) % kPage) % kPage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kPage - before);
  ::madvise(begin + before, bytes, MADV_HUGEPAGE);  // a hint: ordinary pages work too
  return begin + before;
}

void unmap(const auto& range) { ::munmap(range.start, range.bytes); }

}  // namespace

BlockPool::~BlockPool() { unmap_idle(); }

void* BlockPool::allocate(std::size_t bytes) noexcept {
  if (bytes > std::numeric_limits<std::size_t>::max() - 2 * kHugePage) return nullptr;
  Blocks own;
  try {
    own.emplace(nullptr, Block{.bytes = round_up(bytes)});
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  auto node = own.extract(own.begin());
  const MutexLock lock(mutex_);
  auto* start = allocate_idle(node);
  if (start == nullptr) start = allocate_mapped(node.mapped().bytes);
  if (start == nullptr) return nullptr;
  node.key() = start;
  in_use_.insert(std::move(node));
  return start;
}

// Unmaps idle blocks when memory is short.
std::byte* BlockPool::allocate_mapped(std::size_t bytes) {
  auto* start = map_aligned(bytes);
  while (start == nullptr && idle_bytes_ > 0) {
    const auto range = extract_excess(0);
    const MutexUnlock unlocked(mutex_);
    unmap(range);
    start = map_aligned(bytes);
  }
  return start;
}

// Best fit. `own` becomes the node of the block.
std::byte* BlockPool::allocate_idle(Blocks::node_type& own) {
  const auto bytes = own.mapped().bytes;
  auto best = idle_.end();
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    if (block->second.bytes < bytes) continue;
    if (best == idle_.end() || block->second.bytes < best->second.bytes) best = block;
  }
  if (best == idle_.end()) return nullptr;
  auto* const start = best->first;
  auto node = idle_.extract(best);
  idle_bytes_ -= bytes;
  if (node.mapped().bytes == bytes) {
    own = std::move(node);
    return start;
  }
  node.key() = start + bytes;
  node.mapped().bytes -= bytes;
  idle_.insert(std::move(node));
  return start;
}

bool BlockPool::owns(void* start) const {
  const MutexLock lock(mutex_);
  return in_use_.contains(static_cast<std::byte*>(start));
}

void BlockPool::deallocate(void* start) noexcept {
  const MutexLock lock(mutex_);
  const auto found = in_use_.find(static_cast<std::byte*>(start));
  if (found == in_use_.end()) return;
  insert_idle(in_use_.extract(found));
  while (idle_bytes_ > limit_) {
    const auto range = extract_excess(limit_);
    const MutexUnlock unlocked(mutex_);  // munmap is slow
    unmap(range);
  }
}

void BlockPool::insert_idle(Blocks::node_type node) {
  node.mapped().freed_at = ++ticks_;
  idle_bytes_ += node.mapped().bytes;
  const auto block = idle_.insert(std::move(node)).position;
  auto& [start, own] = *block;
  const auto next = std::next(block);
  if (next != idle_.end() && start + own.bytes == next->first) {
    own.bytes += next->second.bytes;
    idle_.erase(next);
  }
  if (block == idle_.begin()) return;
  const auto before = std::prev(block);
  if (before->first + before->second.bytes != start) return;
  before->second = {before->second.bytes + own.bytes, ticks_};
  idle_.erase(block);
}

// Takes what exceeds the limit from the end of the block that has been idle longest, as far as that block
// reaches.
BlockPool::Range BlockPool::extract_excess(std::size_t limit) {
  const auto older = [](const auto& a, const auto& b) { return a.second.freed_at < b.second.freed_at; };
  const auto oldest = std::ranges::min_element(idle_, older);
  auto& left = oldest->second.bytes;
  const auto bytes = std::min(round_up(idle_bytes_ - limit), left);
  left -= bytes;
  idle_bytes_ -= bytes;
  const Range range{oldest->first + left, bytes};
  if (left == 0) idle_.erase(oldest);
  return range;
}

bool BlockPool::unmap_idle() noexcept {
  const MutexLock lock(mutex_);
  if (idle_bytes_ == 0) return false;
  while (idle_bytes_ > 0) unmap(extract_excess(0));
  return true;
}

std::size_t BlockPool::idle_bytes() const {
  const MutexLock lock(mutex_);
  return idle_bytes_;
}

}  // namespace lockstep
