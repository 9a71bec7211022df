// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

namespace lockstep {

/// How the nccl backend is set up; other backends pass over it. What is not given stays at NCCL's default.
/// PyTorch: `ProcessGroupNCCL.Options` and its `config`.
struct NcclOptions {
  /// Collectives run before other work that waits for the GPU. PyTorch: `is_high_priority_stream`.
  bool high_priority_stream = false;
  /// Whether wait() blocks the host until the device has done the call, instead of only making the current
  /// stream wait. Not given: as TORCH_NCCL_BLOCKING_WAIT says, else false.
  std::optional<bool> blocking_wait = {};
  /// Whether communicators are made and ended without blocking the host. NCCL: `blocking`, the other way
  /// round.
  std::optional<bool> nonblocking = {};
  std::optional<int> min_ctas = {};          ///< blocks of threads a collective uses at least
  std::optional<int> max_ctas = {};          ///< and at most: fewer leave more of the GPU to backward
  std::optional<int> cga_cluster_size = {};  ///< 0 to 8; from Hopper on
  const char* net_name = nullptr;            ///< of the network plugin: "IB", "Socket"; copied by init()
};

}  // namespace lockstep
