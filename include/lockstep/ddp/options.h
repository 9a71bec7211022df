// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Element types for DistributedDataParallelOptions::mixed_precision; those not given stay as they are.
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

/// Options of DistributedDataParallel under PyTorch's names, with PyTorch's defaults except where said. All
/// ranks give the same ones. docs/ddp.md lists what PyTorch has and C++ does not need.
struct DistributedDataParallelOptions {
  /// Moves the module there at construction and every tensor argument of forward(). Default: the module is
  /// left where it is, and so are arguments. PyTorch: `device_ids` with one entry.
  std::optional<c10::Device> device = std::nullopt;

  /// Where forward()'s outputs are moved to. Default: they stay where they are.
  std::optional<c10::Device> output_device = std::nullopt;

  /// Whether buffers (e.g. BatchNorm's running statistics) are broadcast from rank 0 at construction and
  /// before each forward.
  bool broadcast_buffers = true;

  /// Replaces broadcast_buffers where given: whether buffers are broadcast before each forward; at
  /// construction they are in any case (with init_sync).
  std::optional<bool> forward_sync_buffers = std::nullopt;

  /// Whether parameters and buffers are checked across ranks and broadcast from rank 0 at construction.
  /// Without it the caller answers for their being equal.
  bool init_sync = true;

  /// Default: the default group.
  std::optional<ProcessGroup> process_group = std::nullopt;

  /// Size limit of a bucket in MiB, positive. Default: 25, with a first bucket of 1 so that the reduction
  /// starts early; a given value holds for the first bucket too, as in PyTorch.
  std::optional<double> bucket_cap_mb = std::nullopt;

  /// A limit of its own for each bucket in turn, in MiB; the last one holds for all further buckets.
  /// Excludes bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};

  /// Whether parameters may take no part in a step, on some ranks or on all: after each forward the graph
  /// behind its outputs is searched. Forward's return type must be one that TensorVisitor knows. Costs the
  /// search, a copy of the outputs and a small reduction; buckets stay in the order of construction.
  bool find_unused_parameters = false;

  /// True: each gradient lies in its bucket, which saves a copy and the memory of a second gradient; a
  /// gradient that was kept from an earlier step changes with the next one. False: gradients keep their own
  /// memory, and the averages are copied there. PyTorch's default is false because its bucket views are
  /// autograd views with limitations (`detach_()`, hence zero_grad(), fails on them); ours have none.
  bool gradient_as_bucket_view = true;

  /// The caller promises that every step has the same graph, with the same unused parameters. Allows
  /// parameters that are used by several re-entrant backward passes, e.g. of checkpoint(); finds unused ones
  /// in the first step, without find_unused_parameters' costs.
  bool static_graph = false;

  /// Names of parameters of the wrapped module that are left out of the buckets: their gradients are averaged
  /// together when the gradient of `param_to_hook_all_reduce` has been computed. Both or none are given.
  std::vector<std::string> delay_all_reduce_named_params = {};
  std::string param_to_hook_all_reduce = {};

  /// With find_unused_parameters or static_graph: buckets of which no parameter is used are not reduced. The
  /// unused parameters must be the same on all ranks.
  bool skip_all_reduce_unused_params = false;

  /// Whether the gradients of a bucket are copied into it at once when it is full, by two kernels instead of
  /// one for each gradient; rounds like PyTorch with the same option.
  bool batched_grad_copy = false;

  /// Runs forward and backward with copies of the floating-point parameters in a smaller type, and sums
  /// gradients in one; the optimizer sees parameters and gradients in their own types. Outputs have the
  /// smaller type. Gradients keep their own memory. Allows no other communication hook, no
  /// optimizer_in_backward and no static_graph.
  std::optional<MixedPrecision> mixed_precision = std::nullopt;

  /// Names of parameters and buffers of the wrapped module that are left alone: neither checked, broadcast
  /// nor reduced. PyTorch: `_set_params_and_buffers_to_ignore_for_model`.
  std::vector<std::string> params_and_buffers_to_ignore = {};

  /// Makes an optimizer for the parameter it is given. Where set, each parameter is stepped inside of
  /// backward as soon as its bucket is reduced, its gradient is dropped and the bucket's memory given back,
  /// so that only a part of the gradients exists at a time. See DistributedDataParallelModule::optimizers().
  /// PyTorch:
  /// `_apply_optimizer_in_backward`.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer_in_backward = {};
};

}  // namespace lockstep
