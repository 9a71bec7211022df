// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "ddp/wrapped_tensors.h"
#include "nn/synced_batch_norm.h"

namespace lockstep::ddp {

// What the ranks of a join agree on.
class JoinAgreement {
 public:
  // The first three outlive it. `device`: of its tensors.
  JoinAgreement(const WrappedTensors& tensors, const ProcessGroup& group, const c10::Device& device,
                std::source_location where)
      : tensors_(tensors), group_(group), device_(device), where_(where) {}

  // Throws ArgumentError for layers of the module that a join cannot follow.
  void begin(const std::vector<nn::SyncedLayer>& synced);
  // The buffers of the SyncBatchNorm layers.
  const std::vector<modules::NamedTensor>& synced_buffers() const { return synced_buffers_; }

  // The highest rank that is a candidate. Collective. Throws Error if there is none.
  int find_common_rank(bool candidate) const;

  // What one rank, or all together, know of an iteration before its forward.
  struct Iteration {
    bool reduces = false;    // a rank's backward will be reduced
    bool announces = false;  // see note [Announced calls]
  };
  // `must_learn`: this rank has no data for the first step of a static graph. Collective. Throws DesyncError
  // on all ranks if those without data cannot follow.
  Iteration agree_on_iteration(bool has_data, bool reduces, bool must_learn) const;

 private:
  const WrappedTensors& tensors_;
  const ProcessGroup& group_;
  const c10::Device& device_;
  std::source_location where_;
  std::vector<modules::NamedTensor> synced_buffers_;
  bool has_synced_layers_ = false;
};

}  // namespace lockstep::ddp
