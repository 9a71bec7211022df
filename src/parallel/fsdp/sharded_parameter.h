// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/fsdp/fully_shard.h>

#include "intercept/storage_guard.h"
#include "modules/cut.h"

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

// A parameter of a module, cut along a dimension, whose indices are called rows: rank r has rows r * chunk
// and on, at most `chunk`.
struct ShardedParameter {
  std::string name;
  std::vector<std::int64_t> full_sizes;  // before any rank took a part
  std::vector<modules::Cut> cuts;        // from these to this rank's rows
  std::vector<std::int64_t> sizes;       // of the module's tensor
  bool trained = false;
  std::int64_t dim = 0;     // of the rows
  std::int64_t row = 0;     // elements of a row
  std::int64_t chunk = 0;   // rows of a rank, with padding
  std::int64_t offset = 0;  // of this parameter in a rank's part of the group's flat layout
  // The module's tensor. Its storage owns the group, so the group does not own it.
  c10::weak_intrusive_ptr<c10::TensorImpl> whole;
  at::Tensor initial = {};  // this rank's rows before there is memory for them
  at::Tensor shard = {};    // this rank's rows: what the optimizer steps

  std::int64_t all_rows() const { return sizes[static_cast<std::size_t>(dim)]; }
  std::int64_t first_row(int rank) const { return std::min(rank * chunk, all_rows()); }
  std::int64_t rows(int rank) const { return first_row(rank + 1) - first_row(rank); }
  std::int64_t numel() const { return all_rows() * row; }
  std::int64_t padded_shard_numel() const { return chunk * row; }
  std::vector<std::int64_t> shard_sizes(int rank) const {
    auto shape = sizes;
    shape[static_cast<std::size_t>(dim)] = rows(rank);
    return shape;
  }
  // The view of a rank's rows in a tensor of the parameter's shape.
  at::Tensor rows_in(const at::Tensor& all, int rank) const {
    return all.narrow(dim, first_row(rank), rows(rank));
  }
  // The module's tensor; undefined when the module does not exist any more.
  at::Tensor lock_whole() const {
    auto impl = whole.lock();
    return impl ? at::Tensor(std::move(impl)) : at::Tensor();
  }
};

// "net.cpp:7: fully_shard()"
std::string call_text(std::source_location where);
// "the group of layers.0.weight of fully_shard() in net.cpp:7"
std::string describe(const std::vector<ShardedParameter>& parameters, const GroupOptions& options);

// The flat layout of a group is a row for each rank, with the rank's rows of all parameters, padded.
// `flat`: [ranks, elements of a rank]; `whole`: of the parameter's shape; `offset`: in a rank's row;
// `first_rank`: that of the first row.
void pack(const at::Tensor& whole, const ShardedParameter& parameter, const at::Tensor& flat,
          std::int64_t offset, int first_rank = 0);
void unpack(const at::Tensor& flat, const ShardedParameter& parameter, const at::Tensor& whole);
// `row`: that of one rank.
void unpack_row(const at::Tensor& row, const ShardedParameter& parameter, const at::Tensor& whole, int rank);

// This rank's rows of the values that the parameter starts with; undefined: it has none.
at::Tensor take_rows(ShardedParameter& parameter, int rank);
// Gives a tensor another type or device in place. It has no memory then.
void set_type(const at::Tensor& tensor, const at::TensorOptions& options);
// Gives the module's tensor a guarded storage without memory, and the type that `dtype` asks for.
void guard_parameter(const ShardedParameter& parameter, std::unique_ptr<intercept::MemoryGuard> guard,
                     std::optional<at::ScalarType> dtype);
// What the module's tensor points at; undefined: nothing.
at::Tensor memory_of(const ShardedParameter& parameter);
// Points the module's tensor at `memory`, or at nothing.
void set_memory(const ShardedParameter& parameter, const at::Tensor& memory);
// Sets the shard to a leaf on flat memory. A shard that was on device meta stays the same tensor.
void make_shard(ShardedParameter& parameter, int rank, const at::Tensor& flat);
// Sets the shard, and the guard of the module's tensor, on device meta.
void make_deferred_shard(ShardedParameter& parameter, int rank,
                         std::unique_ptr<intercept::MemoryGuard> guard);
// Makes the guard of a parameter's storage.
using GuardMaker = std::function<std::unique_ptr<intercept::MemoryGuard>()>;

// The size of a block that has the whole parameters of a group, in the types that `dtype` asks for, and the
// parameters in such a block.
std::int64_t block_bytes(const std::vector<ShardedParameter>& parameters,
                         std::optional<at::ScalarType> dtype);
std::vector<at::Tensor> wholes_in(const at::Tensor& block, const std::vector<ShardedParameter>& parameters,
                                  std::optional<at::ScalarType> dtype);

}  // namespace lockstep::fsdp
