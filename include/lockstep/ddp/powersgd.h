// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

/// Options of PowerSGD under the names of PyTorch's `PowerSGDState`, with its defaults.
struct PowerSGDOptions {
  std::optional<ProcessGroup> process_group = std::nullopt;  ///< default: that of the bucket
  std::int64_t matrix_approximation_rank = 1;
  /// So many iterations average uncompressed gradients; 2 or more with error feedback or warm start.
  std::int64_t start_powerSGD_iter = 1000;
  /// A gradient is compressed when that saves more than this factor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  ///< adds what compression lost to the next step's gradients
  bool warm_start = true;          ///< begins each step with the last one's matrices
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;  ///< the same on all ranks
  bool batch_tensors_with_same_shape = false;
};

/// A communication hook that sends gradients as products of two thin matrices. Copies share their state.
/// PyTorch: `powerSGD_hook`, with the same random numbers; Vogels et al., PowerSGD (2019).
///
///     ddp->register_comm_hook(PowerSGD({.matrix_approximation_rank = 2, .start_powerSGD_iter = 100}));
class PowerSGD {
 public:
  /// Throws ArgumentError for options that PyTorch refuses, too.
  explicit PowerSGD(const PowerSGDOptions& options = {});
  BucketWork operator()(GradBucket& bucket) const;

  /// Elements of all gradients since compression began, and what was sent in their place. PyTorch:
  /// `compression_stats`.
  struct CompressionStats {
    double rate = 0;
    std::int64_t numel_before = 0;
    std::int64_t numel_after = 0;
  };
  CompressionStats compression_stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
