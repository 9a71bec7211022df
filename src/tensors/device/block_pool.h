// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include <lockstep/base/mutex.h>

namespace lockstep {

// Caches large blocks of memory from the kernel, in huge pages where the host has them. A request is cut from
// the smallest idle block that is long enough; idle neighbours are merged. Thread-safe. No function allocates
// memory while it holds the mutex, so a std::new_handler can call unmap_idle().
class BlockPool {
 public:
  // Alignment of blocks, and the unit of their size.
  static constexpr std::size_t kHugePage = 2 * 1024 * 1024;

  // Keeps up to `limit` bytes of idle blocks.
  explicit BlockPool(std::size_t limit) : limit_(limit) {}
  // Unmaps idle blocks. No block may be in use.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Uninitialized memory; nullptr when there is none.
  void* allocate(std::size_t bytes) noexcept;
  // Does nothing unless `start` is a block in use.
  void deallocate(void* start) noexcept;
  // Whether `start` is the start of a block in use.
  bool owns(void* start) const;

  std::size_t idle_bytes() const;
  // Returns whether there were idle blocks.
  bool unmap_idle() noexcept;

  // For fork(): the child must not inherit a mutex that another thread holds.
  void lock() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void unlock() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }

 private:
  struct Range {
    std::byte* start = nullptr;
    std::size_t bytes = 0;
  };
  struct Block {
    std::size_t bytes = 0;
    std::uint64_t freed_at = 0;  // in ticks_
  };
  using Blocks = std::map<std::byte*, Block>;

  std::byte* allocate_idle(Blocks::node_type& own) LOCKSTEP_REQUIRES(mutex_);
  std::byte* allocate_mapped(std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  void insert_idle(Blocks::node_type node) LOCKSTEP_REQUIRES(mutex_);
  Range extract_excess(std::size_t limit) LOCKSTEP_REQUIRES(mutex_);

  std::size_t limit_;
  mutable Mutex mutex_;
  Blocks idle_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t idle_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t ticks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Blocks in_use_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
