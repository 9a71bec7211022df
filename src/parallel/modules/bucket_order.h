// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {
class DistributedDataParallelModule;
}

namespace lockstep::ddp {

// For commits, implemented by DistributedDataParallel: which gradient lies where in the buckets. Backends whose order of
// a sum depends on the place of a number, such as gloo with three hosts or more, give other bits in other buckets.
struct BucketOrder {
  // The parameters in the order of the first reduced backward, and a digest of their names; empty while the buckets are
  // those of construction.
  static std::vector<std::int64_t> of(const DistributedDataParallelModule& module);
  // The next forward rebuilds the buckets in this order of rank 0, which the others have too. Empty, or of
  // other parameters: they stay those of construction, as rejoin() leaves them.
  static void restore(DistributedDataParallelModule& module, std::vector<std::int64_t> order);
};

}  // namespace lockstep::ddp
