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

}  // namespace

LargeBlocks::~LargeBlocks() { drop_idle(0); }

void* LargeBlocks::take(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - 2 * kHugePage) return nullptr;
  bytes = rounded(bytes);
  const std::lock_guard lock(mutex_);
  auto* start = take_idle(bytes);
  if (start == nullptr) start = map(bytes);
  if (start == nullptr) {
    drop_idle(0);
    start = map(bytes);
  }
  if (start != nullptr) in_use_.emplace(start, bytes);
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
  if (whole > bytes) idle_.emplace_hint(std::next(best), start + bytes, Idle{whole - bytes, since});
  idle_.erase(best);
  idle_bytes_ -= bytes;
  return start;
}

bool LargeBlocks::has(void* start) const {
  const std::lock_guard lock(mutex_);
  return in_use_.contains(start);
}

void LargeBlocks::give_back(void* start) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(start);
  if (found == in_use_.end()) return;
  const auto bytes = found->second;
  in_use_.erase(found);
  try {
    keep(static_cast<std::byte*>(start), bytes);
  } catch (const std::bad_alloc&) {
    ::munmap(start, bytes);
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
  if (block != idle_.begin()) {
    const auto before = std::prev(block);
    if (before->first + before->second.bytes == start) {
      before->second = {before->second.bytes + block->second.bytes, ticks_};
      idle_.erase(block);
    }
  }
  drop_idle(limit_);
}

// Those longest idle first.
void LargeBlocks::drop_idle(std::size_t limit) {
  const auto older = [](const auto& a, const auto& b) { return a.second.since < b.second.since; };
  while (idle_bytes_ > limit) {
    const auto block = std::ranges::min_element(idle_, older);
    ::munmap(block->first, block->second.bytes);
    idle_bytes_ -= block->second.bytes;
    idle_.erase(block);
  }
}

std::size_t LargeBlocks::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace lockstep
