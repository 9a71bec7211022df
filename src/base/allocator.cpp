// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>

#include <lockstep/base/allocator.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <lockstep/base/env.h>

namespace lockstep {

void keep_freed_memory() {
#ifdef __GLIBC__
  const Env env;
  for (const auto* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (env.has(name)) return;
  }
  constexpr int kMiB = 1024 * 1024;
  ::mallopt(M_MMAP_THRESHOLD, 32 * kMiB);  // the most that glibc takes
  ::mallopt(M_TRIM_THRESHOLD, 1024 * kMiB);
  ::mallopt(M_TOP_PAD, 64 * kMiB);
#endif
}

}  // namespace lockstep
