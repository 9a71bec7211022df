// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/heap.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/shm/layout.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kPage = 4096;

// Whole pages; large pieces as whole huge pages, so that each begins at one.
std::size_t rounded(std::size_t bytes) {
  const auto unit = bytes >= Layout::kHugePage ? Layout::kHugePage : kPage;
  return std::max(kPage, (bytes + unit - 1) / unit * unit);
}

std::size_t aligned(std::size_t offset, std::size_t bytes) {
  const auto unit = bytes >= Layout::kHugePage ? Layout::kHugePage : kPage;
  return (offset + unit - 1) / unit * unit;
}

[[noreturn]] void fail_short(std::size_t end) {
  throw Error(fmt::format("memory is short: the shared heap ends at {} bytes", end));
}

}  // namespace

Heap::Heap(const SharedMemory& memory, std::size_t offset) : memory_(memory), start_(offset) {}

std::byte* Heap::allocate(std::size_t bytes) {
  if (bytes > memory_.size()) fail_short(memory_.size() - start_);  // rounding it up could overflow
  const auto length = rounded(bytes);
  const std::lock_guard lock(mutex_);
  auto offset = take_free(length);
  if (offset == end_) offset = extend(length);
  used_[offset] = length;
  return memory_.data() + start_ + offset;
}

// The tightest free piece that holds an aligned one of this length; end_ when there is none.
std::size_t Heap::take_free(std::size_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (aligned(it->first, bytes) + bytes > it->first + it->second) continue;
    if (best == free_.end() || it->second < best->second) best = it;
  }
  if (best == free_.end()) return end_;
  const auto [offset, length] = *best;
  const auto begin = aligned(offset, bytes);
  free_.erase(best);
  if (begin > offset) free_[offset] = begin - offset;
  if (begin + bytes < offset + length) free_[begin + bytes] = offset + length - begin - bytes;
  return begin;
}

std::size_t Heap::extend(std::size_t bytes) {
  const auto begin = aligned(end_, bytes);
  if (start_ + begin + bytes > memory_.size()) fail_short(memory_.size() - start_);
  memory_.commit(start_ + end_, begin + bytes - end_, "tensors that ranks share");
  if (bytes >= Layout::kHugePage) memory_.prefer_huge_pages(start_ + begin, bytes);
  if (begin > end_) give_back(end_, begin - end_);
  end_ = begin + bytes;
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
  const std::lock_guard lock(mutex_);
  const auto it = used_.find(static_cast<std::size_t>(start - memory_.data()) - start_);
  if (it == used_.end()) return;
  give_back(it->first, it->second);
  used_.erase(it);
}

std::size_t Heap::committed() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

}  // namespace lockstep::shm
