// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cstdlib>

#include <lockstep/device/keep_freed_memory.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <lockstep/base/env.h>

#include "device/keeping_allocator.h"

namespace lockstep {
namespace {

bool user_has_decided() {
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
  ::mallopt(M_MMAP_THRESHOLD, 32 * kMiB);  // the most that glibc takes
  ::mallopt(M_TRIM_THRESHOLD, 1024 * kMiB);
  ::mallopt(M_TOP_PAD, 64 * kMiB);
#endif
}

}  // namespace

void keep_freed_memory() {
  if (user_has_decided()) return;
  tune_malloc();
#ifndef __SANITIZE_ADDRESS__  // which would not see what is wrong with memory that is used again
  keep_large_tensors();
#endif
}

}  // namespace lockstep
