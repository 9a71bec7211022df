// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <unordered_map>

namespace lockstep {

// Large blocks of memory, taken from the kernel and kept for the next who wants one of about that size. In
// huge pages where the host has them to give. Safe from any thread.
class LargeBlocks {
 public:
  // Blocks begin at multiples of this, and are as long.
  static constexpr std::size_t kHugePage = 2 * 1024 * 1024;

  // Idle blocks of up to `limit` bytes together are kept.
  explicit LargeBlocks(std::size_t limit) : limit_(limit) {}
  // Idle blocks are given back; none may be in use.
  ~LargeBlocks();
  LargeBlocks(const LargeBlocks&) = delete;
  LargeBlocks& operator=(const LargeBlocks&) = delete;

  // Uninitialized. nullptr when there is no memory.
  void* take(std::size_t bytes);
  void give_back(void* start) noexcept;
  // Whether it is the start of a block in use.
  bool has(void* start) const;

  std::size_t idle_bytes() const;

 private:
  struct Block {
    void* start = nullptr;
    std::size_t bytes = 0;
  };

  void* take_idle(std::size_t bytes);
  void drop_idle(std::size_t limit);

  std::size_t limit_;
  mutable std::mutex mutex_;
  std::list<Block> idle_;  // the one longest idle first
  std::size_t idle_bytes_ = 0;
  std::unordered_map<void*, std::size_t> in_use_;
};

}  // namespace lockstep
