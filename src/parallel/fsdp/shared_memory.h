// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "fsdp/memory_count.h"
#include "fsdp/sharded_parameter.h"

namespace lockstep::fsdp {

// The memory of parameters that ranks share: one copy for the ranks of a NUMA node, or for all.
class SharedMemory {
 public:
  // Takes the parameters' values; sets their shards and guards. Collective.
  SharedMemory(std::vector<ShardedParameter>& parameters, const GroupOptions& options,
               const GuardMaker& make_guard);

  // Writes this rank's rows into the copies. The caller keeps other ranks from reading and waits for their
  // writes. Returns false if there was nothing to write, because the shards are rows of the only copy.
  bool copy_rows();
  void add_to(MemoryCount& count) const;

 private:
  void place(ShardedParameter& parameter, const std::vector<at::Tensor>& copies, const GuardMaker& make_guard,
             std::optional<at::ScalarType> dtype);

  std::vector<ShardedParameter>& parameters_;
  int rank_;
  int sharing_ranks_ = 1;  // of this rank's copy
  bool counts_ = true;     // this rank counts the copy, the others of it do not
  // [parameter]: this rank's rows in all copies, but for those that are the shard itself.
  std::vector<std::vector<at::Tensor>> rows_;
};

}  // namespace lockstep::fsdp
