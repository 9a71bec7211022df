// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

/// A base of optimizers whose states are distributed over ranks, such as ZeroRedundancyOptimizer. By it
/// state_dict(), TrainingState and memory_report() know what this rank has.
class DistributedStates {
 public:
  virtual ~DistributedStates() = default;

  /// Throws ArgumentError, which says what to do, unless this rank has the states of all parameters.
  virtual void check_complete() const = 0;
  /// Gives rank 0 of the optimizer's group the states of all ranks. All ranks call it together.
  virtual void consolidate() = 0;

  struct Sharing {
    int ranks = 1;         ///< that share the parameter's memory
    bool is_owner = true;  ///< whether this rank's share counts for all of them
  };
  /// nullopt for a parameter that only this rank has.
  virtual std::optional<Sharing> sharing_of(const at::Tensor& parameter) const = 0;
};

}  // namespace lockstep::optim
