// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <source_location>

#include <lockstep/comm/process_group.h>

#include "ddp/wrapped_tensors.h"

namespace lockstep::ddp {

// Gives the ranks one rank's buffers before a forward.
class BufferSync {
 public:
  // The tensors and the group outlive it. `is_on`: the option.
  BufferSync(const WrappedTensors& tensors, const ProcessGroup& group, bool is_on, std::source_location where)
      : tensors_(tensors), group_(group), is_on_(is_on), where_(where) {}

  bool is_on() const { return is_on_; }
  bool has_any() const { return is_on_ && !tensors_.buffers().empty() && group_.size() > 1; }
  // Whether the next forward broadcasts: they may differ since a forward for training.
  bool is_due() const { return may_differ_ && has_any(); }
  void set_may_differ(bool may_differ) { may_differ_ = may_differ; }

  // Collective.
  void broadcast(int source) const;
  // The other ranks' broadcast(), with a tensor `like(buffer)` in place of each buffer.
  void broadcast_in_place(const std::function<at::Tensor(const at::Tensor&)>& like) const;

 private:
  const WrappedTensors& tensors_;
  const ProcessGroup& group_;
  bool is_on_;
  bool may_differ_ = true;
  std::source_location where_;
};

}  // namespace lockstep::ddp
