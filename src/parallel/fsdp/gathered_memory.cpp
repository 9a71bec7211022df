// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/gathered_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "comm/mapped_memory.h"
#include "comm/memory_for_calls.h"

namespace lockstep::fsdp {
namespace {

// For a rank's rows of parameters with `type`.
at::Tensor memory_for_shards(std::int64_t numel, const at::TensorOptions& type, const GroupOptions& options) {
  const auto& policy = options.offload_policy;
  if (!policy || type.device().is_cpu()) return comm::memory_for_calls(options.shard_group, numel, type);
  return at::empty({numel}, type.device(at::kCPU).pinned_memory(policy->pin_memory));
}

}  // namespace

GatheredMemory::GatheredMemory(std::vector<ShardedParameter>& parameters, const GroupOptions& options,
                               const GuardMaker& make_guard)
    : parameters_(parameters),
      group_(options.shard_group),
      device_(parameters.front().lock_whole().device()),
      dtype_(options.mp_policy.param_dtype),
      where_(options.where) {
  const auto type = parameters.front().lock_whole().options().requires_grad(false);
  const auto& last = parameters.back();
  shards_ = memory_for_shards(last.offset + last.padded_shard_numel(), type, options).zero_();
  for (auto& parameter : parameters_) {
    const auto rank = group_.rank();
    make_shard(parameter, rank, shards_.narrow(0, parameter.offset, parameter.padded_shard_numel()));
    if (const auto own = take_rows(parameter, rank); own.defined()) parameter.shard.detach().copy_(own);
    guard_parameter(parameter, make_guard(), dtype_);
  }
}

void GatheredMemory::prefetch() {
  if (work_) return;
  in_lane_ = hosts_ != nullptr && !kept_;
  auto [ranks, input] = kept_ ? *std::exchange(kept_, std::nullopt) : own_rows();
  input_ = std::move(input);
  output_ = at::empty({ranks.size() * input_.numel()}, input_.options());
  launched_ = CallTimes::Clock::now();
  work_ = ranks.all_gather_into_tensor_async(output_, input_, where_);
}

void GatheredMemory::make_whole() {
  prefetch();
  const auto flat = finish();
  is_on_host_ = in_lane_;
  if (in_lane_) return share_on_host(flat.view({hosts_->lane.size(), -1}));
  for (const auto& parameter : parameters_) {
    const auto memory = at::empty(parameter.sizes, flat.options());
    unpack(flat.view({group_.size(), -1}), parameter, memory);
    set_memory(parameter, memory);
  }
}

void GatheredMemory::release() {
  for (const auto& parameter : parameters_) set_memory(parameter, {});
}

// The parts of `ranks` in their order are the flat layout.
void GatheredMemory::keep_part(const ProcessGroup& ranks) {
  const auto rows = group_.size() / ranks.size();
  const auto type = shards_.options().device(device_).dtype(dtype_.value_or(shards_.scalar_type()));
  const auto part = at::empty({rows, shards_.numel()}, type);
  for (const auto& parameter : parameters_) {
    const auto whole = memory_of(parameter);
    if (whole.defined()) pack(whole, parameter, part, parameter.offset, ranks.rank() * rows);
  }
  kept_ = Part{ranks, part};
}

void GatheredMemory::add_to(MemoryCount& count) const {
  for (const auto& parameter : parameters_) {
    count.parameters.add(parameter.shard);
    const auto whole = memory_of(parameter);
    if (!is_on_host_) {
      count.gathered.add(whole);
    } else if (whole.defined()) {
      count.gathered_on_host += static_cast<std::int64_t>(whole.nbytes()) / hosts_->host.size();
    }
  }
  count.gathered.add(output_);
  if (input_.defined() && !input_.is_alias_of(shards_)) count.gathered.add(input_);
  if (kept_) count.gathered.add(kept_->rows);
}

// Offloaded shards change after the gradients of a backward have been copied, so after this copy is complete.
GatheredMemory::Part GatheredMemory::own_rows() const {
  const auto rows = shards_.to(shards_.options().device(device_), /*non_blocking=*/true);
  return {in_lane_ ? hosts_->lane : group_, dtype_ ? rows.to(*dtype_) : rows};
}

// The lanes of a host have different rows, and each rank copies those of its lane. `flat`: [hosts, elements
// of a rank].
void GatheredMemory::share_on_host(const at::Tensor& flat) {
  const BlockLayout layout(parameters_, dtype_);
  const auto block = comm::map_on_all_ranks(hosts_->host, {0}, layout.bytes(), where_).front();
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    all.push_back(layout.whole_in(block, i));
    for (std::size_t host = 0; host < hosts_->lane_ranks.size(); ++host)
      unpack_row(flat[static_cast<std::int64_t>(host)], parameters_[i], all[i], hosts_->lane_ranks[host]);
  }
  hosts_->host.barrier(where_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) set_memory(parameters_[i], all[i]);
}

at::Tensor GatheredMemory::finish() {
  CallTimes call{.launched = launched_, .waiting = CallTimes::Clock::now(), .done = {}};
  std::exchange(work_, std::nullopt)->wait();
  call.done = CallTimes::Clock::now();
  call.bytes = group_.size() * shards_.numel() * static_cast<std::int64_t>(output_.element_size());
  gathering_ = call;
  input_.reset();
  return std::exchange(output_, {});
}

}  // namespace lockstep::fsdp
