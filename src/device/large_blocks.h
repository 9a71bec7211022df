// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace lockstep {

// Large blocks of memory, taken from the kernel and kept for whoever wants some next: idle blocks are cut to
// what is asked for, and neighbours are joined. In huge pages where the host has them to give. Safe from any
// thread.
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
  void* take(std::size_t bytes) noexcept;
  void give_back(void* start) noexcept;
  // Whether it is the start of a block in use.
  bool has(void* start) const;

  std::size_t idle_bytes() const;

  // Around fork(): a child must not find the blocks locked by a thread that it does not have.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Piece {
    std::byte* start = nullptr;
    std::size_t bytes = 0;
  };
  struct Idle {
    std::size_t bytes = 0;
    std::uint64_t since = 0;  // as ticks_ counts
  };

  std::byte* take_idle(std::size_t bytes);
  void keep(std::byte* start, std::size_t bytes);
  std::byte* map_anew(std::size_t bytes, std::unique_lock<std::mutex>& lock);
  Piece cut_excess(std::size_t limit);

  std::size_t limit_;
  mutable std::mutex mutex_;
  std::map<std::byte*, Idle> idle_;
  std::size_t idle_bytes_ = 0;
  std::uint64_t ticks_ = 0;
  std::unordered_map<void*, std::size_t> in_use_;
};

}  // namespace lockstep
