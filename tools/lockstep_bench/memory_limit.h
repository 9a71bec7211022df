// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/shared_memory.h>
#include <lockstep/comm/process_group.h>

#include "collectives.h"

namespace lockstep::bench {

/// What an all-reduce in place cannot beat: the ranks read and write the same bytes of memory that they
/// share, each its part, and wait for nobody. float32 sums only.
class MemoryLimit {
 public:
  /// All ranks of one host call it.
  MemoryLimit(const ProcessGroup& group, std::size_t bytes);

  Trial prepare(std::int64_t count) const;

 private:
  ProcessGroup group_;
  std::size_t bytes_;
  SharedMemory memory_;
};

}  // namespace lockstep::bench
