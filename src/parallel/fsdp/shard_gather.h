// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rank_progress.h"
#include "fsdp/memory_count.h"
#include "fsdp/sharded_parameter.h"
#include "fsdp/shared_memory.h"
#include "fsdp/step_calls.h"

namespace lockstep::fsdp {

// The whole parameters of a group: gathered before their use and freed, or one copy that ranks share. On
// device meta they have neither. Collective calls are in the same order on all ranks.
class ShardGather {
 public:
  ShardGather(std::vector<ShardedParameter>& parameters, const GroupOptions& options, TrafficCount& traffic)
      : parameters_(parameters), options_(options), traffic_(traffic), version_(0) {}

  // Takes the parameters' values; sets their shards and guards, on device meta without memory. Collective.
  void place(const GuardMaker& make_guard);
  bool is_deferred() const { return !shared_ && !shards_.defined(); }

  // Whether the module's parameters exist.
  bool is_whole() const { return is_whole_; }
  // Whether they have the values of the shards, too.
  bool is_current() const { return is_whole_ && has_last_values(); }
  // Starts what make_whole() waits for. Nothing if parameters are current or shared. Collective.
  void prefetch(StepCalls& calls);
  // Waits for a prefetch() whose result is not needed.
  void drop_prefetch(StepCalls& calls);
  // The module's parameters get the values of the shards. Ranks neither read nor write shared ones meanwhile.
  // Returns whether it has written to these. Throws ArgumentError, before any call, on device meta.
  // Collective.
  bool make_whole(StepCalls& calls);
  // Frees gathered parameters.
  void release(StepCalls& calls);
  // The same, but keeps what options.ranks_after_forward asks for.
  void release_after_forward(StepCalls& calls);
  // Drops a gathering that has failed, and all values of the step. Makes no call.
  void forget_step(StepCalls& calls);
  // The shards may have changed, also without a change of their version.
  void invalidate();
  // Later uses of shared parameters and their shards throw.
  void forbid_access(const std::string& why) const;
  void add_to(MemoryCount& count) const;

  bool is_held = false;  // whole by FSDPModule::unshard(), and not used since

 private:
  // What a rank of a group contributes to a gathering.
  struct Part {
    ProcessGroup ranks;
    at::Tensor rows;
  };

  // Whether shards have not changed since they were made whole.
  bool has_last_values() const { return is_valid_ && whole_version_ == version_.current_version(); }
  void prepare(StepCalls& calls);
  void start();
  at::Tensor finish(StepRecord& record);
  void gather(StepRecord& record);
  void share_on_host(const at::Tensor& flat);
  std::int64_t whole_bytes() const;

  std::vector<ShardedParameter>& parameters_;
  const GroupOptions& options_;
  TrafficCount& traffic_;
  std::optional<SharedMemory> shared_;  // has none of what follows but for versions
  at::Tensor shards_;                   // this rank's row of the flat layout
  c10::Device device_ = at::kCPU;       // of the gathered parameters
  std::optional<Part> kept_;            // between forward and backward
  std::shared_ptr<const HostSplit> hosts_;
  bool in_lane_ = false;     // the gathering under way is the lane's
  bool is_on_host_ = false;  // whole parameters lie in memory that the host's ranks share
  at::Tensor input_;
  at::Tensor output_;
  std::optional<Work> work_;
  CallTimes::Clock::time_point launched_;

  c10::VariableVersion version_;  // of all shards
  std::uint32_t whole_version_ = 0;
  std::uint32_t prefetched_version_ = 0;
  bool is_valid_ = false;
  bool is_whole_ = false;
  GatheredBytes gathered_;
};

}  // namespace lockstep::fsdp
