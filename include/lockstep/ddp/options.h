// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Options of DistributedDataParallel under PyTorch's names, with PyTorch's defaults except where said.
/// Those marked "refused" belong to a later version: setting one throws ArgumentError at construction.
struct DistributedDataParallelOptions {
  /// Moves the module there at construction and every tensor argument of forward(). Default: the module is
  /// left where it is, and so are arguments. PyTorch: `device_ids` with one entry.
  std::optional<c10::Device> device = std::nullopt;

  /// Where outputs go; refused unless it is `device`.
  std::optional<c10::Device> output_device = std::nullopt;

  /// Whether buffers (e.g. BatchNorm's running statistics) are broadcast from rank 0 before each forward.
  bool broadcast_buffers = true;

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

  bool find_unused_parameters = false;  ///< refused

  /// True: each gradient lies in its bucket, which saves a copy and the memory of a second gradient; a
  /// gradient that was kept from an earlier step changes with the next one. False: gradients keep their own
  /// memory, and the averages are copied there. PyTorch's default is false because its bucket views are
  /// autograd views with limitations (`detach_()`, hence zero_grad(), fails on them); ours have none.
  bool gradient_as_bucket_view = true;

  bool static_graph = false;                                    ///< refused
  std::vector<std::string> delay_all_reduce_named_params = {};  ///< refused
  bool mixed_precision = false;                                 ///< refused
  bool skip_all_reduce_unused_params = false;                   ///< refused
};

}  // namespace lockstep
