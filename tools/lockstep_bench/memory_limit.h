// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/comm/process_group.h>

#include "base/shared_memory.h"
#include "collectives.h"

namespace lockstep::bench {

// The lower bound of a zero-copy all-reduce: each rank sums its part of shared memory, without
// synchronization. float32 sums only.
class MemoryLimit {
 public:
  // Collective; all ranks must be on one host.
  MemoryLimit(const ProcessGroup& group, std::size_t bytes);

  Trial prepare(std::int64_t count) const;

 private:
  ProcessGroup group_;
  std::size_t bytes_;
  SharedMemory memory_;
};

}  // namespace lockstep::bench
