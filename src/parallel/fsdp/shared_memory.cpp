// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/shared_memory.h"

#include <algorithm>
#include <set>
#include <string>

#include <ATen/ops/zeros.h>

#include "base/env.h"
#include "comm/mapped_memory.h"
#include "machine/host.h"

namespace lockstep::fsdp {
namespace {

// The NUMA node of this rank's cores; empty: they are of several nodes.
std::string own_numa_node() {
  if (const auto named = Env().get("LOCKSTEP_NUMA_NODE")) return *named;
  std::set<int> nodes;
  for (const auto& core : machine::read_cores()) nodes.insert(core.numa_node);
  return nodes.size() == 1 ? std::to_string(*nodes.begin()) : "";
}

// [rank]: the first rank of its NUMA node, which has the node's copy. All have one copy unless every rank is
// bound to a node.
std::vector<int> owners_of_copies(const GroupOptions& options) {
  const auto nodes = options.shard_group.all_gather_object(own_numa_node(), options.where);
  std::vector<int> owners(nodes.size(), 0);
  if (std::ranges::count(nodes, "") > 0) return owners;
  std::ranges::transform(nodes, owners.begin(), [&](const auto& node) {
    return static_cast<int>(std::ranges::find(nodes, node) - nodes.begin());
  });
  return owners;
}

// Those of all copies, with that of this rank's copy first.
std::vector<int> distinct(const std::vector<int>& owners, int own) {
  std::vector<int> all{own};
  for (const auto owner : std::set<int>(owners.begin(), owners.end()))
    if (owner != own) all.push_back(owner);
  return all;
}

}  // namespace

SharedMemory::SharedMemory(std::vector<ShardedParameter>& parameters, const GroupOptions& options,
                           const GuardMaker& make_guard)
    : parameters_(parameters), rank_(options.shard_group.rank()) {
  const auto dtype = options.mp_policy.param_dtype;
  const auto owners = owners_of_copies(options);
  const auto own = owners[static_cast<std::size_t>(rank_)];
  sharing_ranks_ = static_cast<int>(std::ranges::count(owners, own));
  counts_ = rank_ == own;
  std::vector<std::vector<at::Tensor>> copies(parameters_.size());
  for (const auto& block : comm::map_on_all_ranks(options.shard_group, distinct(owners, own),
                                                  block_bytes(parameters_, dtype), options.where)) {
    const auto copy = wholes_in(block, parameters_, dtype);
    for (std::size_t i = 0; i < copy.size(); ++i) copies[i].push_back(copy[i]);
  }
  for (std::size_t i = 0; i < copies.size(); ++i) place(parameters_[i], copies[i], make_guard, dtype);
  // For readers that are no operators, such as torch::save().
  if (copy_rows()) options.shard_group.barrier(options.where);
}

// `copies`: of the whole parameter, that of this rank first.
void SharedMemory::place(ShardedParameter& parameter, const std::vector<at::Tensor>& copies,
                         const GuardMaker& make_guard, std::optional<at::ScalarType> dtype) {
  const auto options = parameter.lock_whole().options().requires_grad(false);
  const auto own = take_rows(parameter, rank_);
  auto& written = rows_.emplace_back();
  for (const auto& copy : copies) written.push_back(parameter.rows_in(copy, rank_));
  // Optimizers step contiguous tensors; rows of other dimensions lie apart in the whole parameter.
  const bool is_shard = copies.front().options().dtype() == options.dtype() && parameter.dim == 0;
  const auto shard = is_shard ? written.front() : at::zeros(written.front().sizes(), options);
  if (is_shard) written.erase(written.begin());
  if (own.defined()) shard.copy_(own);
  make_shard(parameter, rank_, shard);
  guard_parameter(parameter, make_guard(), dtype);
  set_memory(parameter, copies.front());
}

bool SharedMemory::copy_rows() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (const auto& rows : rows_[i]) rows.copy_(parameters_[i].shard.detach());
  return std::ranges::any_of(rows_, [](const auto& rows) { return !rows.empty(); });
}

void SharedMemory::add_to(MemoryCount& count) const {
  for (const auto& parameter : parameters_) {
    const auto whole = memory_of(parameter);
    if (whole.defined()) {
      const auto bytes = static_cast<std::int64_t>(whole.nbytes());
      count.shared += bytes / sharing_ranks_;
      if (counts_) count.owned += bytes;
    }
    if (!whole.defined() || !whole.is_alias_of(parameter.shard)) count.parameters.add(parameter.shard);
  }
}

}  // namespace lockstep::fsdp
