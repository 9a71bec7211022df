// SPDX-License-Identifier: BSD-3-Clause
#include "device/keeping_allocator.h"

#include <algorithm>
#include <cstdint>
#include <pthread.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <lockstep/base/shared_memory.h>

#include "device/large_blocks.h"

namespace lockstep {
namespace {

constexpr std::size_t kSmallest = std::size_t{16} * 1024 * 1024;
constexpr std::size_t kMostIdle = std::size_t{2} * 1024 * 1024 * 1024;

// Other processes train beside this one, and page caches and shared memory want their part.
std::size_t idle_limit() { return std::min(kMostIdle, available_memory() / 8); }

// Tensors may outlive all of the program's other objects, so the blocks do, too.
LargeBlocks& blocks() {
  static auto& instance = *new LargeBlocks(idle_limit());
  return instance;
}

// Also of what LibTorch's own allocator gave: all memory of one allocator has one deleter.
void release(void* start) {
  if (start == nullptr) return;
  const bool may_be_block = reinterpret_cast<std::uintptr_t>(start) % LargeBlocks::kHugePage == 0;
  if (!may_be_block || !blocks().has(start)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(start);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(start);
  blocks().give_back(start);
}

class KeepingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const start = bytes < kSmallest ? c10::GetDefaultCPUAllocator()->raw_allocate(bytes) : take(bytes);
    return {start, start, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void* take(std::size_t bytes) {
    void* const start = blocks().take(bytes);
    if (start == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK(false, "there is no memory for a tensor of ", bytes, " bytes");
    }
    c10::profiledCPUMemoryReporter().New(start, bytes);
    return start;
  }
};

}  // namespace

void keep_large_tensors() {
  if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
  ::pthread_atfork([] { blocks().lock(); }, [] { blocks().unlock(); }, [] { blocks().unlock(); });
  static auto& allocator = *new KeepingAllocator;
  c10::SetCPUAllocator(&allocator);
}

}  // namespace lockstep
