// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/heap.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "backends/shm/layout.h"
#include "base/limits.h"
#include "base/throw_error.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr double kMegabyte = 1024.0 * 1024.0;
constexpr const char* kPurpose = "tensors that ranks share";

std::size_t up_to(std::size_t unit, std::size_t bytes) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void fail_short(std::size_t asked, std::size_t end) {
  const auto limits = shareable_limits();
  throw_error<Error>(
      "memory is short: {:.1f} MiB more of shared memory are needed for {}, which may use {:.1f} MiB in all{}",
      static_cast<double>(asked) / kMegabyte, kPurpose, static_cast<double>(end) / kMegabyte,
      limits.empty() ? "" : fmt::format(" ({}; raise it)", limits));
}

}  // namespace

std::shared_ptr<const SharedMemory> Heap::memory() {
  const MutexLock lock(mutex_);
  if (!memory_) memory_ = std::make_shared<const SharedMemory>(SharedMemory::create("lockstep heap", bytes_));
  return memory_;
}

std::byte* Heap::allocate(std::size_t bytes) {
  if (bytes > bytes_) fail_short(bytes, bytes_);  // rounding it up could overflow
  (void)memory();
  // Not whole huge pages: rebuilt buckets must fit into the place of the old ones.
  const auto length = std::max(kPage, up_to(kPage, bytes));
  const MutexLock lock(mutex_);
  auto offset = take_free(length);
  if (offset == end_) offset = extend(length);
  used_[offset] = length;
  return memory_->data() + offset;
}

// The tightest free piece that is long enough; end_ when there is none.
std::size_t Heap::take_free(std::size_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    if (best == free_.end() || it->second < best->second) best = it;
  }
  if (best == free_.end()) return end_;
  const auto [offset, length] = *best;
  free_.erase(best);
  if (bytes < length) free_[offset + bytes] = length - bytes;
  return offset;
}

// Large pieces are committed in huge pages; the rest is for other pieces.
std::size_t Heap::extend(std::size_t bytes) {
  const bool large = bytes >= Layout::kHugePage;
  const auto begin = large ? up_to(Layout::kHugePage, end_) : end_;
  const auto end = begin + (large ? up_to(Layout::kHugePage, bytes) : bytes);
  if (end > bytes_) fail_short(bytes, bytes_);
  memory_->commit(end_, end - end_, kPurpose);
  if (large) memory_->prefer_huge_pages(begin, end - begin);
  const auto before = std::exchange(end_, end);
  if (begin > before) give_back(before, begin - before);
  if (end > begin + bytes) give_back(begin + bytes, end - begin - bytes);
  return begin;
}

void Heap::give_back(std::size_t offset, std::size_t bytes) {
  auto [it, inserted] = free_.emplace(offset, bytes);
  if (const auto next = std::next(it); next != free_.end() && offset + bytes == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (const auto before = std::prev(it); before->first + before->second == offset) {
    before->second += it->second;
    free_.erase(it);
  }
}

void Heap::free(std::byte* start) {
  const MutexLock lock(mutex_);
  const auto it = used_.find(static_cast<std::size_t>(start - memory_->data()));
  if (it == used_.end()) return;
  give_back(it->first, it->second);
  used_.erase(it);
}

std::size_t Heap::committed() const {
  const MutexLock lock(mutex_);
  return end_;
}

}  // namespace lockstep::shm
