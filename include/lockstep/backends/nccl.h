// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

namespace lockstep {

/// Settings of the nccl backend. Other backends ignore them. A field without a value has NCCL's default.
/// PyTorch: `ProcessGroupNCCL.Options` and its `config`.
struct NcclOptions {
  /// Whether collectives run before other work that waits for the GPU. PyTorch: `is_high_priority_stream`.
  bool high_priority_stream = false;
  /// Whether wait() blocks the host until the device has finished the call. False: only the current stream
  /// waits, as in a step that is captured into a graph. Default: TORCH_NCCL_BLOCKING_WAIT, else false.
  std::optional<bool> blocking_wait = {};
  /// Whether communicators are created and destroyed without blocking the host. The opposite of NCCL's
  /// `blocking`.
  std::optional<bool> nonblocking = {};
  std::optional<int> min_ctas = {};          ///< minimum number of thread blocks of a collective
  std::optional<int> max_ctas = {};          ///< maximum; fewer leave more of the GPU to backward
  std::optional<int> cga_cluster_size = {};  ///< 0 to 8; from Hopper on
  std::string net_name = {};                 ///< network plugin, "IB" or "Socket"; empty: NCCL's choice
};

}  // namespace lockstep
