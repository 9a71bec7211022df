// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <pthread.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <lockstep/device/device.h>

#include "base/env.h"
#include "base/shared_memory.h"
#include "device/block_pool.h"

namespace lockstep {
namespace {

constexpr std::size_t kSmallestBlock = std::size_t{16} * 1024 * 1024;
constexpr std::size_t kMaxIdleBytes = std::size_t{2} * 1024 * 1024 * 1024;

bool user_configured_malloc() {
  constexpr std::array names{"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_",
                             "MALLOC_TOP_PAD_"};
  constexpr std::array allocators{"jemalloc", "tcmalloc", "mimalloc"};
  const Env env;
  const auto preloaded = env.get("LD_PRELOAD").value_or("");
  return std::ranges::any_of(names, [&](const char* name) { return env.has(name); }) ||
         std::ranges::any_of(allocators,
                             [&](const char* name) { return preloaded.find(name) != std::string::npos; });
}

void tune_malloc() {
#ifdef __GLIBC__
  constexpr int kMiB = 1024 * 1024;
  ::mallopt(M_MMAP_THRESHOLD, 32 * kMiB);  // glibc's maximum
  ::mallopt(M_TRIM_THRESHOLD, 1024 * kMiB);
  ::mallopt(M_TOP_PAD, 64 * kMiB);
#endif
}

// Never destroyed, because tensors may outlive every other object of the program. The limit leaves memory to
// other ranks, the page cache and shared memory.
BlockPool& block_pool() {
  static auto& instance = *new BlockPool(std::min(kMaxIdleBytes, available_memory() / 8));
  return instance;
}

// Also frees memory that LibTorch's default allocator returned: an allocator has one deleter for all its
// memory.
void deallocate_cpu(void* start) {
  if (start == nullptr) return;
  const bool may_be_block = reinterpret_cast<std::uintptr_t>(start) % BlockPool::kHugePage == 0;
  if (!may_be_block || !block_pool().owns(start)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(start);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(start);
  block_pool().deallocate(start);
}

// Idle blocks must not make an allocation of other code fail, such as a small one of operator new.
class FreeIdleMemoryOnShortage {
 public:
  static void install() {
    (void)block_pool();  // run() must not allocate
    before() = std::set_new_handler(&run);
  }

 private:
  static std::new_handler& before() {
    static std::new_handler handler = nullptr;
    return handler;
  }
  static void run() {
    if (block_pool().unmap_idle()) return;
    if (before() == nullptr) throw std::bad_alloc();
    before()();
  }
};

class CachingCpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const start = bytes < kSmallestBlock ? allocate_on_heap(bytes) : allocate_block(bytes);
    return {start, start, &deallocate_cpu, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void* allocate_on_heap(std::size_t bytes) {
    auto* const usual = c10::GetDefaultCPUAllocator();
    try {
      return usual->raw_allocate(bytes);
    } catch (const c10::Error&) {
      if (!block_pool().unmap_idle()) throw;
      return usual->raw_allocate(bytes);
    }
  }
  static void* allocate_block(std::size_t bytes) {
    void* start = block_pool().allocate(bytes);
    if (start == nullptr && empty_cpu_cache()) start = block_pool().allocate(bytes);
    if (start == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK(false, "not enough memory for a tensor of ", bytes, " bytes");
    }
    c10::profiledCPUMemoryReporter().New(start, bytes);
    return start;
  }
};

[[maybe_unused]] void install_allocator() {
  if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
  ::pthread_atfork([] { block_pool().lock(); }, [] { block_pool().unlock(); }, [] { block_pool().unlock(); });
  static auto& allocator = *new CachingCpuAllocator;
  c10::SetCPUAllocator(&allocator);
  FreeIdleMemoryOnShortage::install();
}

}  // namespace

bool empty_cpu_cache() noexcept {
  bool freed = block_pool().unmap_idle();
#ifdef __GLIBC__
  freed = ::malloc_trim(0) != 0 || freed;
#endif
  return freed;
}

void enable_caching_cpu_allocator() {
  if (user_configured_malloc()) return;
  tune_malloc();
#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer cannot check reused memory
  install_allocator();
#endif
}

}  // namespace lockstep
