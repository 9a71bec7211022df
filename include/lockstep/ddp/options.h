// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/device/device.h>

namespace lockstep {

/// Element types for DistributedDataParallelOptions::mixed_precision; types that are not set do not change.
/// PyTorch: DDP's `_MixedPrecision`.
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype = std::nullopt;   ///< of parameters in forward and backward
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;  ///< of the sums; default: param_dtype
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;  ///< of buffers, from construction on
  /// False: gradients have the parameters' own type after backward.
  bool keep_low_precision_grads = false;
  /// Whether floating-point tensors among forward's arguments are cast to param_dtype.
  bool cast_forward_inputs = true;
};

/// Options of DistributedDataParallel under PyTorch's names and in PyTorch's order, then Lockstep's, with PyTorch's
/// defaults unless noted. They must be the same on all ranks. docs/ddp.md lists PyTorch's options that C++ does not need.
struct DistributedDataParallelOptions {
  /// Moves the module at construction, and every tensor argument of forward(), to this one device: `{0}` is
  /// cuda:0, `{context.device()}` the device of the rank. Default: moves nothing.
  std::vector<DeviceId> device_ids = {};

  /// Moves forward()'s outputs to this device. Default: moves nothing.
  std::optional<DeviceId> output_device = std::nullopt;

  /// Whether buffers (e.g. BatchNorm's running statistics) are broadcast from rank 0 at construction and
  /// before each forward.
  bool broadcast_buffers = true;

  /// Whether parameters and buffers are broadcast from rank 0 at construction. If false, the caller must
  /// ensure that their values are equal; names, shapes, types and options are compared in any case.
  bool init_sync = true;

  /// The ranks that train together. Default: the default group.
  std::optional<ProcessGroup> process_group = std::nullopt;

  /// Size limit of a bucket in MiB, positive. Default: 25, and 1 for the first bucket so that the reduction
  /// starts early. A given value also limits the first bucket, as in PyTorch.
  std::optional<double> bucket_cap_mb = std::nullopt;

  /// Allows parameters to take no part in a step, on some ranks or on all, by searching the graph behind the
  /// outputs after each forward. TensorVisitor must know forward's return type. Costs the search, a copy of
  /// the outputs and a small reduction. Buckets stay in the order of construction.
  bool find_unused_parameters = false;

  /// True: gradients share their bucket's memory, which saves a copy and a second gradient. The next step
  /// then overwrites gradients that the program still refers to. False: gradients have their own memory, and
  /// the averages are copied there. PyTorch's default is false because its bucket views are autograd views,
  /// on which `detach_()` and hence zero_grad() fail; these are not.
  bool gradient_as_bucket_view = true;

  /// Declares that every step has the same graph, with the same unused parameters. Allows parameters used by
  /// several re-entrant backward passes, e.g. of checkpoint(). Finds unused parameters in the first step,
  /// without the costs of find_unused_parameters.
  bool static_graph = false;

  /// Names of parameters of the wrapped module that have no bucket: their gradients are averaged together
  /// after the gradient of `param_to_hook_all_reduce` has been computed. Set both or none.
  std::vector<std::string> delay_all_reduce_named_params = {};
  std::string param_to_hook_all_reduce = {};

  /// Runs forward and backward with low-precision copies of the floating-point parameters, and sums gradients
  /// in low precision. The optimizer sees parameters and gradients in their own types; outputs have the
  /// low-precision type. Gradients have their own memory. Excludes communication hooks, optimizer_in_backward
  /// and static_graph.
  std::optional<MixedPrecision> mixed_precision = std::nullopt;

  /// With find_unused_parameters or static_graph: does not reduce buckets without a used parameter. The
  /// unused parameters must be the same on all ranks.
  bool skip_all_reduce_unused_params = false;

  /// The limits of the first, second, ... bucket in MiB; the last one limits all further buckets. Excludes
  /// bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};

  /// Whether the gradients of a full bucket are copied into it by two kernels instead of one per gradient.
  /// Rounds like PyTorch with the same option.
  bool batched_grad_copy = false;

  /// If set, replaces broadcast_buffers for the broadcast before each forward; construction broadcasts
  /// buffers in any case (with init_sync).
  std::optional<bool> forward_sync_buffers = std::nullopt;

  /// Whether a bucket gets its memory when the first of its gradients is ready, and frees it when the
  /// gradients are averaged. With gradient_as_bucket_view the gradients keep the memory until zero_grad().
  /// Between two steps the buckets then have no memory, which backward's activations can use. Excludes
  /// GraphedStep; optimizer_in_backward implies it. PyTorch: 2.15 and later.
  bool lazy_bucket_allocation = false;

  /// Names of parameters and buffers of the wrapped module that are neither checked nor broadcast nor
  /// reduced, e.g. expert_names(); they may differ between ranks. PyTorch:
  /// `_set_params_and_buffers_to_ignore_for_model`.
  std::vector<std::string> params_and_buffers_to_ignore = {};

  /// Makes the optimizer of one parameter. If set, backward steps each parameter as soon as its bucket is
  /// reduced, and frees its gradient and the bucket, so that only a part of the gradients exists at a time.
  /// See DistributedDataParallelModule::optimizers(). PyTorch: `_apply_optimizer_in_backward`.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer_in_backward = {};
};

}  // namespace lockstep
