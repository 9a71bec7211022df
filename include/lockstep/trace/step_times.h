// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

/// The times of a step on this rank, in milliseconds. PyTorch: `_get_ddp_logging_data`.
struct StepTimes {
  double forward = 0;
  double backward = 0;  ///< from the end of forward to the last gradient, the loss included
  /// The wait for reductions after the last gradient: the cost of communication.
  double communication_exposed = 0;
  /// From the start of the first reduction to the last gradient: the part that overlaps computation.
  double communication_hidden = 0;
};

}  // namespace lockstep
