// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp/gathered_memory.h"
#include "fsdp/shared_memory.h"
#include "fsdp/traffic.h"

namespace lockstep::fsdp {

class StepCalls;

// The whole parameters of a group: gathered before their use and freed, or one copy that ranks share. On
// device meta they have neither.
class ShardGather {
 public:
  ShardGather(std::vector<ShardedParameter>& parameters, const GroupOptions& options, TrafficCount& traffic)
      : parameters_(parameters), options_(options), traffic_(traffic), version_(0) {}

  // Sets the shards and guards of the parameters, on device meta without memory. Collective.
  void place(const GuardMaker& make_guard);
  bool is_deferred() const { return !gathered_ && !shared_; }
  bool is_shared() const { return options_.share_memory; }

  // Whether the module's parameters exist.
  bool is_whole() const { return is_whole_; }
  // Whether they have the values of the shards, too.
  bool is_current() const { return is_whole_ && has_last_values(); }
  // Starts what make_whole() waits for, unless it would do nothing. Collective.
  void prefetch(StepCalls& calls);
  void drop_prefetch(StepCalls& calls);
  // Ranks neither read nor write shared parameters meanwhile. Returns whether it has written to them. Throws
  // ArgumentError, before any call, on device meta. Collective.
  bool make_whole(StepCalls& calls);
  // Frees gathered parameters.
  void release(StepCalls& calls);
  void release_after_forward(StepCalls& calls);
  // The shards may have changed, also without a change of their version.
  void invalidate();
  // Later uses of shared parameters and their shards throw.
  void forbid_access(const std::string& why) const;
  void add_to(MemoryCount& count) const;

  bool is_held = false;  // whole by FSDPModule::unshard(), and not used since

 private:
  // Whether shards have not changed since they were made whole.
  bool has_last_values() const { return is_valid_ && whole_version_ == version_.current_version(); }
  void prepare(StepCalls& calls);
  void record(StepCalls& calls);

  std::vector<ShardedParameter>& parameters_;
  const GroupOptions& options_;
  TrafficCount& traffic_;
  std::optional<GatheredMemory> gathered_;
  std::optional<SharedMemory> shared_;
  c10::VariableVersion version_;  // of all shards
  std::uint32_t whole_version_ = 0;
  std::uint32_t prefetched_version_ = 0;
  bool is_valid_ = false;
  bool is_whole_ = false;
};

}  // namespace lockstep::fsdp
