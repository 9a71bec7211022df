// SPDX-License-Identifier: BSD-3-Clause
#include "device/large_blocks.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <sys/mman.h>

namespace lockstep {
namespace {

std::size_t rounded(std::size_t bytes) {
  return (bytes + LargeBlocks::kHugePage - 1) / LargeBlocks::kHugePage * LargeBlocks::kHugePage;
}

// `bytes` and the start are multiples of a huge page. nullptr when there is no memory.
std::byte* map(std::size_t bytes) {
  constexpr auto kPage = LargeBlocks::kHugePage;
  void* const whole =
      ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(whole);
  const auto before = (kPage - reinterpret_cast<std::uintptr_t>(begin) % kPage) % kPage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kPage - before);
  ::madvise(begin + before, bytes, MADV_HUGEPAGE);  // ordinary pages will do
  return begin + before;
}

void unmap(const auto& piece) { ::munmap(piece.start, piece.bytes); }

}  // namespace

LargeBlocks::~LargeBlocks() {
  while (idle_bytes_ > 0) unmap(cut_excess(0));
}

void* LargeBlocks::take(std::size_t bytes) noexcept {
  if (bytes > std::numeric_limits<std::size_t>::max() - 2 * kHugePage) return nullptr;
  bytes = rounded(bytes);
  std::unique_lock lock(mutex_);
  auto* start = take_idle(bytes);
  if (start == nullptr) start = map_anew(bytes, lock);
  if (start == nullptr) return nullptr;
  try {
    in_use_.emplace(start, bytes);
  } catch (const std::bad_alloc&) {
    ::munmap(start, bytes);
    return nullptr;
  }
  return start;
}

// Idle blocks are given up for it where memory is short.
std::byte* LargeBlocks::map_anew(std::size_t bytes, std::unique_lock<std::mutex>& lock) {
  auto* start = map(bytes);
  while (start == nullptr && idle_bytes_ > 0) {
    const auto piece = cut_excess(0);
    lock.unlock();
    unmap(piece);
    start = map(bytes);
    lock.lock();
  }
  return start;
}

// From the shortest that is long enough.
std::byte* LargeBlocks::take_idle(std::size_t bytes) {
  auto best = idle_.end();
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    if (block->second.bytes < bytes) continue;
    if (best == idle_.end() || block->second.bytes < best->second.bytes) best = block;
  }
  if (best == idle_.end()) return nullptr;
  auto* const start = best->first;
  const auto [whole, since] = best->second;
  // The node moves: no memory is asked for.
  auto node = idle_.extract(best);
  if (whole > bytes) {
    node.key() = start + bytes;
    node.mapped() = {whole - bytes, since};
    idle_.insert(std::move(node));
  }
  idle_bytes_ -= bytes;
  return start;
}

bool LargeBlocks::has(void* start) const {
  const std::lock_guard lock(mutex_);
  return in_use_.contains(start);
}

void LargeBlocks::give_back(void* start) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = in_use_.find(start);
  if (found == in_use_.end()) return;
  const Piece block{static_cast<std::byte*>(start), found->second};
  in_use_.erase(found);
  try {
    keep(block.start, block.bytes);
  } catch (const std::bad_alloc&) {
    unmap(block);
    return;
  }
  while (idle_bytes_ > limit_) {
    const auto piece = cut_excess(limit_);
    lock.unlock();  // it takes the kernel a while
    unmap(piece);
    lock.lock();
  }
}

void LargeBlocks::keep(std::byte* start, std::size_t bytes) {
  const auto block = idle_.emplace(start, Idle{bytes, ++ticks_}).first;
  idle_bytes_ += bytes;
  const auto next = std::next(block);
  if (next != idle_.end() && start + bytes == next->first) {
    block->second.bytes += next->second.bytes;
    idle_.erase(next);
  }
  if (block == idle_.begin()) return;
  const auto before = std::prev(block);
  if (before->first + before->second.bytes != start) return;
  before->second = {before->second.bytes + block->second.bytes, ticks_};
  idle_.erase(block);
}

// What is above the limit, or as much of it as the block longest idle has, from that one's end.
LargeBlocks::Piece LargeBlocks::cut_excess(std::size_t limit) {
  const auto older = [](const auto& a, const auto& b) { return a.second.since < b.second.since; };
  const auto oldest = std::ranges::min_element(idle_, older);
  auto& left = oldest->second.bytes;
  const auto bytes = std::min(rounded(idle_bytes_ - limit), left);
  left -= bytes;
  idle_bytes_ -= bytes;
  const Piece piece{oldest->first + left, bytes};
  if (left == 0) idle_.erase(oldest);
  return piece;
}

std::size_t LargeBlocks::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace lockstep
