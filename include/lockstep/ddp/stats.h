// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// One bucket of gradients that are reduced together, for looking at.
struct BucketInfo {
  std::int64_t bytes = 0;
  std::vector<std::string> parameters = {};  ///< names in the wrapped module, in the order of the bucket
};

/// Where the time of a step goes, in milliseconds, as this rank sees it. PyTorch: `_get_ddp_logging_data`.
struct StepTimes {
  double forward = 0;
  double backward = 0;  ///< from the end of forward to the last gradient, the loss included
  /// What backward() waits for reductions after its last gradient: this is what communication costs.
  double communication_exposed = 0;
  /// From the first reduction's start to the last gradient: what goes on beside the computation.
  double communication_hidden = 0;
};

/// What DistributedDataParallel counts all the time.
struct DdpStats {
  std::int64_t steps = 0;  ///< backward passes that were reduced
  StepTimes last = {};
  StepTimes mean = {};
  std::vector<BucketInfo> buckets = {};  ///< in the order in which they are reduced
  /// [rank]: in how many steps that rank was the last to start the last reduction, so that the others waited
  /// for it. Known where all ranks run on one host; otherwise all zero.
  std::vector<std::int64_t> arrived_last = {};
};

}  // namespace lockstep
