// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/shard_gather.h"

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

#include "base/throw_error.h"
#include "fsdp/step_calls.h"
#include "optim/parameter_rows.h"

namespace lockstep::fsdp {
namespace {

void defer(ShardedParameter& parameter, int rank, const GuardMaker& make_guard) {
  const auto whole = parameter.lock_whole();
  parameter.shard = at::empty(parameter.shard_sizes(rank), whole.options().requires_grad(false));
  optim::note_rows(parameter.shard,
                   {parameter.full_sizes, offsets_of(parameter.cuts, parameter.sizes.size())});
  parameter.shard.requires_grad_(parameter.trained);
  nn::set_guard(whole, make_guard());
}

}  // namespace

void ShardGather::place(const GuardMaker& make_guard) {
  if (parameters_.front().lock_whole().is_meta()) {
    for (auto& parameter : parameters_) defer(parameter, options_.shard_group.rank(), make_guard);
    return;
  }
  if (is_shared()) {
    shared_.emplace(parameters_, options_, make_guard);
  } else {
    gathered_.emplace(parameters_, options_, make_guard);
  }
  empty_cpu_cache();  // the whole parameters were larger than anything that this rank allocates later
  for (const auto& parameter : parameters_)
    parameter.shard.unsafeGetTensorImpl()->set_version_counter(version_);
  is_whole_ = is_shared();
}

void ShardGather::prefetch(StepCalls& calls) {
  if (!gathered_ || is_current()) return;
  prepare(calls);
  prefetched_version_ = version_.current_version();
  calls.run(options_.shard_group, [&] { gathered_->prefetch(); });
}

void ShardGather::drop_prefetch(StepCalls& calls) {
  calls.run(options_.shard_group, [&] {
    if (gathered_) gathered_->drop_prefetch();
  });
  record(calls);
}

// Only now does the tree have the groups of the whole module, which need one split for all.
void ShardGather::prepare(StepCalls& calls) {
  if (options_.gathers_on_hosts) gathered_->gather_on_hosts(calls.splits.hosts(options_.shard_group));
  if (prefetched_version_ != version_.current_version()) drop_prefetch(calls);
  if (!has_last_values()) gathered_->forget_part();
}

bool ShardGather::make_whole(StepCalls& calls) {
  if (is_deferred()) {
    throw_error<ArgumentError>(
        "{} of fully_shard() is on device meta and has no values; call lockstep::to_empty() on the module, "
        "and load a checkpoint or give it a param_init_fn",
        parameters_.front().name);
  }
  if (gathered_) prepare(calls);
  bool has_written = false;
  calls.run(options_.shard_group, [&] {
    if (shared_) {
      has_written = shared_->copy_rows();
    } else {
      gathered_->make_whole();
    }
  });
  record(calls);
  is_whole_ = is_valid_ = true;
  whole_version_ = version_.current_version();
  return has_written;
}

void ShardGather::record(StepCalls& calls) {
  const auto call = gathered_ ? gathered_->take_gathering() : std::nullopt;
  if (call) calls.record.add_gather(traffic_, *call);
}

void ShardGather::release(StepCalls& calls) {
  is_held = false;
  drop_prefetch(calls);
  if (gathered_) gathered_->release();
  is_whole_ = is_shared();
}

void ShardGather::release_after_forward(StepCalls& calls) {
  if (gathered_ && options_.ranks_after_forward > 0 && has_last_values())
    gathered_->keep_part(calls.splits.parts(options_.shard_group, options_.ranks_after_forward));
  release(calls);
}

void ShardGather::invalidate() {
  is_valid_ = false;
  if (gathered_) gathered_->forget_part();
}

void ShardGather::forbid_access(const std::string& why) const {
  if (!is_shared()) return;
  for (const auto& parameter : parameters_)
    for (const auto& tensor : {parameter.lock_whole(), parameter.shard})
      if (tensor.defined()) nn::forbid_access(tensor, why);
}

void ShardGather::add_to(MemoryCount& count) const {
  if (gathered_) gathered_->add_to(count);
  if (shared_) shared_->add_to(count);
}

}  // namespace lockstep::fsdp
