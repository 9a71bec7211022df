// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <source_location>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Every rank's parameters and buffers become those of rank `src`, as DistributedDataParallel does when it is
/// made; for what trains without it. Collective. Throws DesyncError on all ranks, before anything is sent,
/// where their modules differ in names, kinds of device, dtypes, shapes or strides. PyTorch: the idiom of
/// `dist.broadcast` for each tensor.
void broadcast_module(const ProcessGroup& group, const torch::nn::Module& module, int src = 0,
                      std::source_location where = std::source_location::current());

/// Of a TORCH_MODULE holder or a shared_ptr.
template <typename Holder>
  requires requires(const Holder& holder) {
    { *holder } -> std::convertible_to<const torch::nn::Module&>;
  }
void broadcast_module(const ProcessGroup& group, const Holder& module, int src = 0,
                      std::source_location where = std::source_location::current()) {
  broadcast_module(group, static_cast<const torch::nn::Module&>(*module), src, where);
}

}  // namespace lockstep
