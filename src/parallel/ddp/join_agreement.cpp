// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/join_agreement.h"

#include <algorithm>
#include <array>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "runtime/run.h"

namespace lockstep::ddp {

void JoinAgreement::begin(const std::vector<nn::SyncedLayer>& synced) {
  has_synced_layers_ = false;
  synced_buffers_.clear();
  for (const auto& layer : synced) {
    const auto group = runtime::group_or_default(layer.group, "SyncBatchNorm");
    if (!group || group->size() == 1) continue;
    if (&comm::state_of(*group) != &comm::state_of(group_)) {
      throw_error<ArgumentError>(
          "DistributedDataParallel: join() does not support {}, a SyncBatchNorm with another process group: "
          "ranks without data cannot follow its calls. Give both the same group",
          layer.name);
    }
    has_synced_layers_ = true;
    for (const auto& each : tensors_.buffers()) {
      const auto is_this = [&](const at::Tensor& buffer) { return buffer.is_same(each.tensor); };
      if (std::ranges::any_of(layer.buffers, is_this)) synced_buffers_.push_back(each);
    }
  }
}

int JoinAgreement::find_common_rank(bool candidate) const {
  const auto highest =
      at::full({1}, candidate ? group_.rank() : -1, at::TensorOptions().dtype(at::kInt).device(device_));
  group_.all_reduce(highest, ReduceOp::MAX, where_);
  const int rank = highest.item().toInt();
  if (rank < 0) {
    throw_error<Error>("rank {} of {}: DistributedDataParallel: no rank has data left in this join",
                       group_.rank(), group_.size());
  }
  return rank;
}

JoinAgreement::Iteration JoinAgreement::agree_on_iteration(bool has_data, bool reduces,
                                                           bool must_learn) const {
  enum Flag { kReduces, kHasNoData, kHasSyncedLayers, kMustLearn, kFlags };
  std::array<float, kFlags> here{};
  here[kReduces] = reduces ? 1 : 0;
  here[kHasNoData] = has_data ? 0 : 1;
  here[kHasSyncedLayers] = has_data && has_synced_layers_ ? 1 : 0;
  here[kMustLearn] = must_learn ? 1 : 0;
  const auto sums = at::from_blob(here.data(), {kFlags}, at::kFloat).to(device_, at::kFloat, false, true);
  group_.all_reduce(sums, ReduceOp::SUM, where_);
  const auto host = sums.to(at::kCPU);
  const auto any = [&](Flag flag) { return host[flag].item<float>() != 0; };
  if (any(kReduces) && any(kMustLearn)) {
    throw_error<DesyncError>(
        "rank {} of {}: DistributedDataParallel: {} no data for the first step of a static graph, so that "
        "the ranks cannot train in a join; give each rank at least one batch",
        group_.rank(), group_.size(), must_learn ? "this rank has" : "another rank has");
  }
  return {.reduces = any(kReduces), .announces = any(kHasNoData) && any(kHasSyncedLayers)};
}

}  // namespace lockstep::ddp
