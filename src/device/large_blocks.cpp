// SPDX-License-Identifier: BSD-3-Clause
#include "device/large_blocks.h"

#include <cstdint>
#include <limits>
#include <new>
#include <sys/mman.h>

namespace lockstep {
namespace {

std::size_t rounded(std::size_t bytes) {
  return (bytes + LargeBlocks::kHugePage - 1) / LargeBlocks::kHugePage * LargeBlocks::kHugePage;
}

// `bytes` and the start are multiples of a huge page. nullptr when there is no memory.
void* map(std::size_t bytes) {
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
  if (void* const idle = take_idle(bytes)) return idle;
  void* start = map(bytes);
  if (start == nullptr) {
    drop_idle(0);
    start = map(bytes);
  }
  if (start != nullptr) in_use_.emplace(start, bytes);
  return start;
}

// The shortest that is long enough, and not much too long.
void* LargeBlocks::take_idle(std::size_t bytes) {
  auto best = idle_.end();
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    if (block->bytes < bytes || block->bytes - bytes > bytes / 8) continue;
    if (best == idle_.end() || block->bytes <= best->bytes) best = block;
  }
  if (best == idle_.end()) return nullptr;
  void* const start = best->start;
  in_use_.emplace(start, best->bytes);
  idle_bytes_ -= best->bytes;
  idle_.erase(best);
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
  const Block block{start, found->second};
  in_use_.erase(found);
  try {
    idle_.push_back(block);
  } catch (const std::bad_alloc&) {
    ::munmap(block.start, block.bytes);
    return;
  }
  idle_bytes_ += block.bytes;
  drop_idle(limit_);
}

void LargeBlocks::drop_idle(std::size_t limit) {
  while (idle_bytes_ > limit) {
    const auto block = idle_.front();
    ::munmap(block.start, block.bytes);
    idle_bytes_ -= block.bytes;
    idle_.pop_front();
  }
}

std::size_t LargeBlocks::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace lockstep
