// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fsdp/group_options.h"
#include "fsdp/host_split.h"
#include "fsdp/sharded_parameter.h"
#include "fsdp/traffic.h"
#include "intercept/storage_guard.h"

namespace lockstep::fsdp {

class ParameterGroup;

// Owned by the storage of a module's parameter.
class ParameterGuard final : public intercept::MemoryGuard {
 public:
  explicit ParameterGuard(std::shared_ptr<ParameterGroup> group) : group_(std::move(group)) {}
  Views before_use(std::string_view op, bool writes) override;
  const std::shared_ptr<ParameterGroup>& group() const { return group_; }

 private:
  std::shared_ptr<ParameterGroup> group_;
};

// The group of a module's parameter; nullptr if fully_shard() did not take it.
std::shared_ptr<ParameterGroup> group_of(const at::Tensor& parameter);

// Where the whole parameters and the shards of a group lie. Collective calls are in the same order on all
// ranks.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;
  // Starts what make_whole() waits for. Collective.
  virtual void prefetch() = 0;
  // Throws ArgumentError, before any call, if there is nothing to make whole.
  virtual void check_values() const {}
  // Waits for a prefetch() whose result is not needed.
  virtual void drop_prefetch() = 0;
  // The module's parameters have the values of the shards. Collective.
  virtual void make_whole() = 0;
  // Frees the whole parameters.
  virtual void release() = 0;
  // Keeps a part of the parameters, which are whole, from which make_whole() gathers them again among
  // `ranks`.
  virtual void keep_part(const ProcessGroup& ranks) = 0;
  virtual void forget_part() = 0;
  // The last gathering, once. nullopt: there was none since the last call of this.
  virtual std::optional<CallTimes> take_gathering() { return std::nullopt; }
  // Whether make_whole() copies values of shared parameters.
  virtual bool copies() const { return false; }
  // The ranks that share this rank's whole parameters, and whether it is the one that counts them.
  struct Sharing {
    int ranks = 1;
    bool counts = true;
  };
  virtual Sharing sharing() const { return {}; }
  // What it holds of other ranks' rows: parameters that are whole, and those in flight, but for whole
  // parameters that ranks share.
  virtual std::vector<at::Tensor> gathered() const = 0;
  // From now on, make_whole() gathers into memory that the ranks of a host share.
  virtual void gather_on_hosts(std::shared_ptr<const HostSplit> hosts) = 0;
};

// One copy for the ranks of a NUMA node, or for all. Takes the parameters' values; sets their shards and
// their storages. Collective.
std::unique_ptr<ParameterMemory> share_parameters(std::vector<ShardedParameter>& parameters,
                                                  const std::shared_ptr<ParameterGroup>& owner,
                                                  const GroupOptions& options);
// Gathered before their use, and freed.
std::unique_ptr<ParameterMemory> gather_parameters(std::vector<ShardedParameter>& parameters,
                                                   const std::shared_ptr<ParameterGroup>& owner,
                                                   const GroupOptions& options);

// On device meta, until there is memory. Sets the shards and the storages of the module's parameters.
std::unique_ptr<ParameterMemory> defer_parameters(std::vector<ShardedParameter>& parameters,
                                                  const std::shared_ptr<ParameterGroup>& owner,
                                                  const GroupOptions& options);

// This rank's rows of the values that the parameter starts with; undefined: it has none.
at::Tensor take_rows(ShardedParameter& parameter, int rank);
// Gives a tensor another type or device in place. It has no memory then.
void set_type(const at::Tensor& tensor, const at::TensorOptions& options);
// The type of the module's tensor.
at::ScalarType whole_dtype(const ShardedParameter& parameter, std::optional<at::ScalarType> dtype);
// Gives the module's tensor a guarded storage, and the type of whole_dtype().
void guard_parameter(const ShardedParameter& parameter, const std::shared_ptr<ParameterGroup>& owner,
                     std::optional<at::ScalarType> dtype);
// What the module's tensor points at; undefined: nothing.
at::Tensor memory_of(const ShardedParameter& parameter);
// Points the module's tensor at `memory`, or at nothing.
void set_memory(const ShardedParameter& parameter, const at::Tensor& memory);
// A leaf on flat memory. A shard that was on device meta stays the same tensor.
at::Tensor make_shard(const ShardedParameter& parameter, int rank, const at::Tensor& flat);

}  // namespace lockstep::fsdp
