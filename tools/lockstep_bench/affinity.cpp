// SPDX-License-Identifier: BSD-3-Clause
#include "affinity.h"

#include <cerrno>
#include <cstring>
#include <sched.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::bench {
namespace {

void check(int result, const char* what) {
  if (result == 0) return;
  throw Error(fmt::format("cannot bind this rank to a core: {}: {}; --no-bind leaves it where it is", what,
                          std::strerror(errno)));
}

}  // namespace

void bind_to_core(int local_rank) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  check(::sched_getaffinity(0, sizeof(usable), &usable), "sched_getaffinity");
  int skip = local_rank % CPU_COUNT(&usable);
  int core = 0;
  while (!CPU_ISSET(core, &usable) || skip-- > 0) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  check(::sched_setaffinity(0, sizeof(one), &one), "sched_setaffinity");
}

}  // namespace lockstep::bench
