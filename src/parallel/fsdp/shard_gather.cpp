// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/shard_gather.h"

#include <utility>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/mapped_memory.h"

namespace lockstep::fsdp {
namespace {

// For a rank's rows of parameters with `type`.
at::Tensor memory_for_shards(std::int64_t numel, const at::TensorOptions& type, const GroupOptions& options) {
  const auto& policy = options.offload_policy;
  if (!policy || type.device().is_cpu()) return comm::memory_for_calls(options.shard_group, numel, type);
  return at::empty({numel}, type.device(at::kCPU).pinned_memory(policy->pin_memory));
}

}  // namespace

void ShardGather::place(const GuardMaker& make_guard) {
  const auto rank = options_.shard_group.rank();
  const auto type = parameters_.front().lock_whole().options().requires_grad(false);
  if (type.device().is_meta()) {
    for (auto& parameter : parameters_) make_deferred_shard(parameter, rank, make_guard());
    return;
  }
  if (options_.share_memory) {
    shared_.emplace(parameters_, options_, make_guard);
  } else {
    device_ = type.device();
    const auto& last = parameters_.back();
    shards_ = memory_for_shards(last.offset + last.padded_shard_numel(), type, options_).zero_();
    for (auto& parameter : parameters_) {
      make_shard(parameter, rank, shards_.narrow(0, parameter.offset, parameter.padded_shard_numel()));
      if (const auto own = take_rows(parameter, rank); own.defined()) parameter.shard.detach().copy_(own);
      guard_parameter(parameter, make_guard(), options_.mp_policy.param_dtype);
    }
  }
  empty_cpu_cache();  // the whole parameters were larger than anything that this rank allocates later
  for (const auto& parameter : parameters_)
    parameter.shard.unsafeGetTensorImpl()->set_version_counter(version_);
  is_whole_ = options_.share_memory;
}

void ShardGather::prefetch(StepCalls& calls) {
  if (!shards_.defined() || is_current()) return;
  prepare(calls);
  prefetched_version_ = version_.current_version();
  calls.run(options_.shard_group, [&] { start(); });
}

void ShardGather::drop_prefetch(StepCalls& calls) {
  calls.run(options_.shard_group, [&] {
    if (work_) finish(calls.record);
  });
}

// Only now does the tree have the groups of the whole module, which need one split for all. A gathering under
// way keeps its own.
void ShardGather::prepare(StepCalls& calls) {
  if (options_.gathers_on_hosts) {
    auto hosts = calls.splits.hosts(options_.shard_group);
    if (!work_) hosts_ = std::move(hosts);
  }
  if (prefetched_version_ != version_.current_version()) drop_prefetch(calls);
  if (!has_last_values()) kept_.reset();
}

bool ShardGather::make_whole(StepCalls& calls) {
  if (is_deferred()) {
    throw_error<ArgumentError>(
        "{} of fully_shard() is on device meta and has no values; call lockstep::to_empty() on the module, "
        "and load a checkpoint or give it a param_init_fn",
        parameters_.front().name);
  }
  if (!shared_) prepare(calls);
  bool has_written = false;
  calls.run(options_.shard_group, [&] {
    if (shared_) {
      has_written = shared_->copy_rows();
    } else {
      gather(calls.record);
      gathered_.set(whole_bytes());
    }
  });
  is_whole_ = is_valid_ = true;
  whole_version_ = version_.current_version();
  return has_written;
}

void ShardGather::start() {
  if (work_) return;
  in_lane_ = hosts_ != nullptr && !kept_;
  auto part = std::exchange(kept_, std::nullopt);
  if (!part) {
    // Offloaded shards change after the gradients of a backward have been copied, so after this copy is
    // complete.
    const auto rows = shards_.to(shards_.options().device(device_), /*non_blocking=*/true);
    const auto& dtype = options_.mp_policy.param_dtype;
    part = Part{in_lane_ ? hosts_->lane : options_.shard_group, dtype ? rows.to(*dtype) : rows};
  }
  input_ = part->rows;
  output_ = at::empty({part->ranks.size() * input_.numel()}, input_.options());
  launched_ = CallTimes::Clock::now();
  const comm::CallSite site(options_.where, "parameters");
  work_ = part->ranks.all_gather_into_tensor_async(output_, input_, options_.where);
}

at::Tensor ShardGather::finish(StepRecord& record) {
  CallTimes call{.launched = launched_, .waiting = CallTimes::Clock::now(), .done = {}};
  std::exchange(work_, std::nullopt)->wait();
  call.done = CallTimes::Clock::now();
  call.bytes =
      options_.shard_group.size() * shards_.numel() * static_cast<std::int64_t>(output_.element_size());
  record.add_gather(traffic_, call);
  input_.reset();
  return std::exchange(output_, {});
}

void ShardGather::gather(StepRecord& record) {
  start();
  const auto flat = finish(record);
  is_on_host_ = in_lane_;
  if (in_lane_) return share_on_host(flat.view({hosts_->lane.size(), -1}));
  for (const auto& parameter : parameters_) {
    const auto memory = at::empty(parameter.sizes, flat.options());
    unpack(flat.view({options_.shard_group.size(), -1}), parameter, memory);
    set_memory(parameter, memory);
  }
}

// This rank's part of memory that the host's ranks share.
std::int64_t ShardGather::whole_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& parameter : parameters_) {
    if (const auto whole = memory_of(parameter); whole.defined())
      bytes += static_cast<std::int64_t>(whole.nbytes());
  }
  return is_on_host_ ? bytes / hosts_->host.size() : bytes;
}

// The lanes of a host have different rows, and each rank copies those of its lane. `flat`: [hosts, elements
// of a rank].
void ShardGather::share_on_host(const at::Tensor& flat) {
  const auto& dtype = options_.mp_policy.param_dtype;
  const auto bytes = block_bytes(parameters_, dtype);
  const auto block = comm::map_on_all_ranks(hosts_->host, {0}, bytes, options_.where).front();
  const auto all = wholes_in(block, parameters_, dtype);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (std::size_t host = 0; host < hosts_->lane_ranks.size(); ++host)
      unpack_row(flat[static_cast<std::int64_t>(host)], parameters_[i], all[i], hosts_->lane_ranks[host]);
  hosts_->host.barrier(options_.where);
  for (std::size_t i = 0; i < parameters_.size(); ++i) set_memory(parameters_[i], all[i]);
}

void ShardGather::release(StepCalls& calls) {
  is_held = false;
  drop_prefetch(calls);
  if (shards_.defined())
    for (const auto& parameter : parameters_) set_memory(parameter, {});
  gathered_.set(0);
  is_whole_ = options_.share_memory;
}

// The kept parts of ranks_after_forward ranks are, in their order, the flat layout.
void ShardGather::release_after_forward(StepCalls& calls) {
  if (options_.ranks_after_forward > 0 && has_last_values()) {
    const auto& ranks = calls.splits.parts(options_.shard_group, options_.ranks_after_forward);
    const auto rows = options_.shard_group.size() / ranks.size();
    const auto dtype = options_.mp_policy.param_dtype.value_or(shards_.scalar_type());
    const auto type = shards_.options().device(device_).dtype(dtype);
    Part kept{ranks, at::empty({rows, shards_.numel()}, type)};
    for (const auto& parameter : parameters_) {
      const auto whole = memory_of(parameter);
      if (whole.defined()) pack(whole, parameter, kept.rows, parameter.offset, ranks.rank() * rows);
    }
    kept_ = std::move(kept);
  }
  release(calls);
}

void ShardGather::forget_step(StepCalls& calls) {
  work_.reset();
  input_.reset();
  output_.reset();
  release(calls);
  invalidate();
}

void ShardGather::invalidate() {
  is_valid_ = false;
  kept_.reset();
}

void ShardGather::forbid_access(const std::string& why) const {
  if (!options_.share_memory) return;
  for (const auto& parameter : parameters_)
    for (const auto& tensor : {parameter.lock_whole(), parameter.shard})
      if (tensor.defined()) intercept::forbid_access(tensor, why);
}

void ShardGather::add_to(MemoryCount& count) const {
  if (shared_) return shared_->add_to(count);
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

}  // namespace lockstep::fsdp
