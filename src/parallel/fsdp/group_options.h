// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <source_location>

#include <lockstep/comm/process_group.h>
#include <lockstep/fsdp/fully_shard.h>

namespace lockstep::fsdp {

// What a call of fully_shard() means for its group.
struct GroupOptions {
  ProcessGroup shard_group;
  std::optional<ProcessGroup> replicas;
  std::optional<bool> reshard_after_forward;
  int ranks_after_forward = 0;  // that have the parameters together until backward; 0: all
  std::function<std::optional<tensor::Placement>(const at::Tensor&)> shard_placement_fn;
  MixedPrecisionPolicy mp_policy;
  std::optional<CPUOffloadPolicy> offload_policy;
  bool share_memory = false;      // one copy
  bool gathers_on_hosts = false;  // the ranks of a host gather into memory that they share
  const void* module = nullptr;   // of the call
  std::source_location where;     // of the call; collectives name it
};

}  // namespace lockstep::fsdp
