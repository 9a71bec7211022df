// SPDX-License-Identifier: BSD-3-Clause
#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace lockstep::simulated {
namespace {

// Addresses are never given twice, so that a use after free is seen; a test needs a few GiB in its life.
constexpr std::size_t kSpan = std::size_t{1} << 38;
constexpr std::size_t kPage = std::size_t{2} << 20;

std::uintptr_t device_begin() {
  static const auto begin = [] {
    void* region = ::mmap(nullptr, 2 * kSpan, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) std::abort();
    return reinterpret_cast<std::uintptr_t>(region);
  }();
  return begin;
}

bool is_device_address(std::uintptr_t address) {
  return address >= device_begin() && address < device_begin() + kSpan;
}

std::size_t round_up(std::size_t size) { return (size + kPage - 1) / kPage * kPage; }

}  // namespace

Memory::Memory() : next_(device_begin()) {}

Memory& Memory::instance() {
  static auto* const memory = new Memory;  // threads of streams outlive the program's own statics
  return *memory;
}

void* Memory::bytes_of(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return reinterpret_cast<void*>(is_device_address(number) ? number + kSpan : number);
}

void* Memory::allocate(Place place, int device, std::size_t size) {
  const auto whole = round_up(size == 0 ? 1 : size);
  const std::lock_guard lock(mutex_);
  void* address = nullptr;
  if (place == Place::device) {
    if (used_[device] + whole > kPerDevice || next_ + whole > device_begin() + kSpan) return nullptr;
    address = reinterpret_cast<void*>(next_);
    if (::mprotect(bytes_of(address), whole, PROT_READ | PROT_WRITE) != 0) return nullptr;
    // A page between blocks stays inaccessible.
    next_ += whole + kPage;
    used_[device] += whole;
    // NaN in every floating type, so that unwritten memory is visible.
    std::memset(bytes_of(address), 0xff, size);
  } else {
    address = std::aligned_alloc(4096, whole);
    if (address == nullptr) return nullptr;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  blocks_[begin] = {place, device, begin, size};
  return address;
}

bool Memory::free(Place place, const void* address) {
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
  if (at == blocks_.end() || at->second.place != place) return false;
  const auto whole = round_up(at->second.size == 0 ? 1 : at->second.size);
  if (place == Place::device) {
    used_[at->second.device] -= whole;
    ::madvise(bytes_of(address), whole, MADV_DONTNEED);
    ::mprotect(bytes_of(address), whole, PROT_NONE);
  } else {
    std::free(const_cast<void*>(address));
  }
  blocks_.erase(at);
  return true;
}

void Memory::add_host(void* address, std::size_t size) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  blocks_[begin] = {Place::host, 0, begin, size};
}

bool Memory::remove_host(const void* address) {
  const std::lock_guard lock(mutex_);
  return blocks_.erase(reinterpret_cast<std::uintptr_t>(address)) > 0;
}

std::optional<Block> Memory::find(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(number);
  if (after == blocks_.begin()) return std::nullopt;
  const auto& block = std::prev(after)->second;
  if (number >= block.begin + (block.size == 0 ? 1 : block.size)) return std::nullopt;
  return block;
}

std::size_t Memory::used(int device) {
  const std::lock_guard lock(mutex_);
  return used_[device];
}

}  // namespace lockstep::simulated
