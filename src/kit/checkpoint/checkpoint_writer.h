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

// How a manager's ranks write a checkpoint. Errors are CheckpointErrors.
class CheckpointWriter {
 public:
  // `options` and `folder` must outlive the writer.
  CheckpointWriter(const CheckpointManagerOptions& options, CheckpointFolder& folder, Group group)
      : options_(options), folder_(folder), group_(std::move(group)) {}
  // Waits for an asynchronous save and logs its error.
  virtual ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Collective. Throws the error of the previous save after this one has started.
  virtual void save(std::int64_t step, const Value& contents, std::optional<double> metric) = 0;
  // Waits for an asynchronous save. Collective. Throws its error.
  virtual void wait() = 0;
  // Waits for an asynchronous save; the next call throws its error. Collective.
  virtual void drain() = 0;

 protected:
  // Prepares the folder for a save of `step`, on rank 0. Only savers remove leftovers, because a manager that
  // only reads must not change the folder.
  void prepare_folder(std::int64_t step);

  const CheckpointManagerOptions& options_;
  CheckpointFolder& folder_;
  Group group_;

 private:
  bool has_written_ = false;
};

std::unique_ptr<CheckpointWriter> write_on_first_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group);
std::unique_ptr<CheckpointWriter> write_on_every_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group);

// Publishes the checkpoint `info`, whose file or folder `write` creates: updates the metrics, the links and
// the damaged checkpoints, and applies retention. On rank 0.
void publish(const CheckpointManagerOptions& options, CheckpointFolder& folder, const CheckpointInfo& info,
             const std::function<void()>& write);

// Removes all checkpoints above `info`, which exists.
void remove_after(const CheckpointManagerOptions& options, const CheckpointFolder& folder,
                  const CheckpointInfo& info);

// Runs both functions, even if `first` throws, and throws its error afterwards. If both throw, a
// CheckpointError of `second` contains both messages.
void run_both(const std::function<void()>& first, const std::function<void()>& second);

}  // namespace lockstep::checkpointing
