// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <lockstep/checkpoint/checkpoint_manager.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/share.h"

namespace lockstep::checkpointing {

/// How a manager's ranks write a checkpoint. Errors are CheckpointErrors.
class CheckpointWriter {
 public:
  CheckpointWriter() = default;
  /// Waits for what is under way; its failure is logged.
  virtual ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Throws the failure of the save before once this one has begun.
  virtual void save(std::int64_t step, const Value& contents, std::optional<double> metric) = 0;
  /// Until all is written. Collective. Throws what made it fail.
  virtual void wait() = 0;
  /// Until nothing is under way; a failure still comes out of the next call. Collective.
  virtual void settle() = 0;
};

/// `options` and `folder` must outlive the writer.
std::unique_ptr<CheckpointWriter> write_on_first_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group);
std::unique_ptr<CheckpointWriter> write_on_every_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group);

/// Around the writing of a checkpoint's `file` by `write`, on rank 0: the metrics before it, the links and
/// the removal of those that no rule keeps after it. What was known as damaged is whole then.
void publish(const CheckpointManagerOptions& options, CheckpointFolder& folder, const CheckpointInfo& info,
             const std::function<void()>& write);

/// Removes those above `info`, which is there.
void remove_after(const CheckpointManagerOptions& options, const CheckpointFolder& folder,
                  const CheckpointInfo& info);

/// Runs both, whatever `first` throws, which is thrown afterwards. When both fail, a CheckpointError of
/// `second` has the words of both.
void run_both(const std::function<void()>& first, const std::function<void()>& second);

}  // namespace lockstep::checkpointing
