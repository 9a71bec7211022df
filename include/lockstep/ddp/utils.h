// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/nn/clip_grad.h>

namespace lockstep {

/// Makes every rank's parameters and buffers equal to those of rank `src`, as the construction of
/// DistributedDataParallel does, for training without it. Collective. Throws DesyncError on all ranks, before
/// anything is sent, if their modules differ in names, device types, dtypes, shapes or strides. PyTorch: a
/// loop of `dist.broadcast`. Default of `process_group`: the default group.
void broadcast_module(const torch::nn::Module& module, int src = 0,
                      std::optional<ProcessGroup> process_group = std::nullopt,
                      std::source_location where = std::source_location::current());

/// The same for a TORCH_MODULE holder or a shared_ptr.
template <typename Holder>
  requires requires(const Holder& holder) {
    { *holder } -> std::convertible_to<const torch::nn::Module&>;
  }
void broadcast_module(const Holder& module, int src = 0,
                      std::optional<ProcessGroup> process_group = std::nullopt,
                      std::source_location where = std::source_location::current()) {
  broadcast_module(static_cast<const torch::nn::Module&>(*module), src, std::move(process_group), where);
}

/// Sets requires_grad to false on the parameters whose names match, and returns their names. Call it before
/// DistributedDataParallel wraps the module. A pattern is the name of a parameter, or of a module for all of
/// its parameters; `*` matches any characters, `?` one. Throws ArgumentError for a pattern that matches
/// nothing.
///
///     lockstep::freeze(*net, {"backbone", "layer?.*.bias"});
std::vector<std::string> freeze(torch::nn::Module& module, const std::vector<std::string>& patterns);

/// The same for the parameters that match none of the patterns, for fine-tuning: `freeze_all_but(*net,
/// {"fc"})`.
std::vector<std::string> freeze_all_but(torch::nn::Module& module, const std::vector<std::string>& patterns);

/// Scales all gradients so that their total norm is at most `max_norm`, and returns the norm before scaling
/// (see ClipGradNormOptions). Call it after the backward that reduces. It needs no communication: the
/// averaged gradients, and hence the norm, are equal on all ranks. Throws Error if the gradients are not
/// averaged (the last backward was in no_sync()) and with optimizer_in_backward, which leaves no gradients.
/// PyTorch: `torch.nn.utils.clip_grad_norm_`.
double clip_grad_norm_(const DistributedDataParallelModule& ddp, double max_norm,
                       const ClipGradNormOptions& options = {});

/// Clamps each element of the gradients to [-clip_value, clip_value], under the same rules. Throws
/// ArgumentError if clip_value is negative or NaN, or if a gradient is complex. PyTorch:
/// `torch.nn.utils.clip_grad_value_`.
void clip_grad_value_(const DistributedDataParallelModule& ddp, double clip_value);

template <typename Module>
double clip_grad_norm_(const DistributedDataParallel<Module>& ddp, double max_norm,
                       const ClipGradNormOptions& options = {}) {
  return clip_grad_norm_(*ddp, max_norm, options);
}

template <typename Module>
void clip_grad_value_(const DistributedDataParallel<Module>& ddp, double clip_value) {
  clip_grad_value_(*ddp, clip_value);
}

}  // namespace lockstep
