// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include <lockstep/base/mutex.h>

#include "base/shared_memory.h"

namespace lockstep::shm {

// Allocates pieces of a shared memory. Freed pieces are kept and reused. Safe from any thread.
class Heap {
 public:
  // `bytes`: of address space, which memory() reserves at its first call.
  explicit Heap(std::size_t bytes) : bytes_(bytes) {}

  // Throws Error where the address space is short.
  std::shared_ptr<const SharedMemory> memory();

  // At least `bytes`, aligned to a page. Contents are unspecified. Throws Error when memory is short.
  std::byte* allocate(std::size_t bytes);
  void free(std::byte* start);

  // Memory committed so far.
  std::size_t committed() const;

 private:
  std::size_t take_free(std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  std::size_t extend(std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);
  void give_back(std::size_t offset, std::size_t bytes) LOCKSTEP_REQUIRES(mutex_);

  std::size_t bytes_;
  mutable Mutex mutex_;
  std::shared_ptr<const SharedMemory> memory_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::size_t, std::size_t> free_ LOCKSTEP_GUARDED_BY(mutex_);  // offset from the start: bytes
  std::map<std::size_t, std::size_t> used_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t end_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // everything before it is committed
};

}  // namespace lockstep::shm
