// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <fstream>
#include <unistd.h>

namespace lockstep::testing {

/// The process's private memory, used and idle: what RLIMIT_DATA limits.
inline std::int64_t private_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  for (int field = 0; field < 6; ++field) file >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace lockstep::testing
