// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "fsdp/group_splits.h"
#include "fsdp/memory_count.h"
#include "fsdp/sharded_parameter.h"
#include "fsdp/traffic.h"

namespace lockstep::fsdp {

// The memory of parameters that are gathered before their use, and freed. Collective calls are in the same
// order on all ranks.
class GatheredMemory {
 public:
  // Takes the parameters' values; sets their shards and guards.
  GatheredMemory(std::vector<ShardedParameter>& parameters, const GroupOptions& options,
                 const GuardMaker& make_guard);

  // Starts what make_whole() waits for. Collective.
  void prefetch();
  // Waits for a prefetch() whose result is not needed.
  void drop_prefetch() {
    if (work_) finish();
  }
  // The module's parameters have the values of the shards. Collective.
  void make_whole();
  // Frees the whole parameters.
  void release();
  // Keeps a part of the parameters, which are whole, from which make_whole() gathers them again among
  // `ranks`.
  void keep_part(const ProcessGroup& ranks);
  void forget_part() { kept_.reset(); }
  // From now on, make_whole() gathers into memory that the ranks of a host share. No effect while a gathering
  // over other groups is under way.
  void gather_on_hosts(std::shared_ptr<const HostSplit> hosts) {
    if (!work_) hosts_ = std::move(hosts);
  }
  // The last gathering, once. nullopt: there was none since the last call of this.
  std::optional<CallTimes> take_gathering() { return std::exchange(gathering_, std::nullopt); }
  void add_to(MemoryCount& count) const;

 private:
  // What a rank of a group contributes to a gathering.
  struct Part {
    ProcessGroup ranks;
    at::Tensor rows;
  };

  Part own_rows() const;
  void share_on_host(const at::Tensor& flat);
  at::Tensor finish();

  std::vector<ShardedParameter>& parameters_;
  ProcessGroup group_;
  c10::Device device_;  // of the gathered parameters
  std::optional<at::ScalarType> dtype_;
  std::source_location where_;
  at::Tensor shards_;         // this rank's row of the flat layout
  std::optional<Part> kept_;  // between forward and backward
  std::shared_ptr<const HostSplit> hosts_;
  bool in_lane_ = false;     // the gathering under way is the lane's
  bool is_on_host_ = false;  // whole parameters lie in memory that the host's ranks share
  at::Tensor input_;
  at::Tensor output_;
  std::optional<Work> work_;
  CallTimes::Clock::time_point launched_;
  std::optional<CallTimes> gathering_;
};

}  // namespace lockstep::fsdp
