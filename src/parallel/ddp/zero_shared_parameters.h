// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <unordered_map>
#include <vector>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/comm/process_group.h>

namespace lockstep::ddp {

// "ZeroRedundancyOptimizer at train.cpp:12", which begins messages.
std::string zero_place(std::source_location where);

// A parameter and the rank within the group that steps it.
struct OwnedParameter {
  std::size_t index = 0;  // in the parameter groups
  at::Tensor parameter;
  int owner = 0;
};

// Throws ArgumentError unless the ranks of the group can share the parameters. `user` begins messages.
void check_can_share(const ProcessGroup& group, const std::vector<at::Tensor>& parameters,
                     const std::string& user);

// Parameters in memory that all ranks of the group map. Each parameter lies in its owner's. All ranks call
// the functions together.
class SharedParameters {
 public:
  using Where = std::source_location;

  explicit SharedParameters(const ProcessGroup& group) : group_(group) {}

  // Moves those that do not lie in shared memory on some rank. A barrier follows before a rank uses them.
  void move(const std::vector<OwnedParameter>& parameters, Where where);
  // Before a step, which sends nothing. Returns whether there are new parameters, on all ranks. Throws Error
  // on all ranks if a parameter no longer lies in shared memory. Also a barrier: the backward of other ranks
  // may read what this rank writes.
  bool check(const std::vector<OwnedParameter>& parameters, Where where);
  // Calls what the ranks do together in a step. If it fails, the parameters may have values of two steps, so
  // that every later access to them throws.
  void call_together(const std::function<void()>& call);
  std::optional<optim::DistributedStates::Sharing> sharing_of(const at::Tensor& parameter) const;

 private:
  struct Shared {
    at::Tensor parameter;
    const void* memory;
    bool is_owner;
  };
  bool is_shared(const at::Tensor& parameter) const;

  ProcessGroup group_;
  std::unordered_map<const void*, Shared> shared_;  // by the parameter's implementation
};

}  // namespace lockstep::ddp
