// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <csignal>
#include <optional>
#include <source_location>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Stops all ranks after the same step when a signal has reached one of them, so that they save one checkpoint: a job
/// nears its time limit, or its machine is taken away (preemption). For loops without a Trainer, which does it itself.
///
///     lockstep::StopSignals signals;
///     bool interrupted = false;
///     for (auto& batch : loader) {
///       train(batch.data, batch.target);
///       ++step;
///       interrupted = signals.should_stop();
///       if (interrupted) break;
///     }
///     manager.save(step, training.state_dict());
///     // main() returns interrupted ? lockstep::kExitInterrupted : 0
///
/// The first signal of a kind is noted. A second one of that kind, from one second later on, has its former effect: by
/// default it ends the process at once. One that comes earlier is the same signal: SLURM sends it to `lockstep run` and
/// to the ranks, and `lockstep run` forwards it. Not in PyTorch.
class StopSignals {
 public:
  /// Handles `signals` in this process until the destructor restores their former handlers. Default: what SLURM,
  /// Kubernetes and cloud machines send. Throws ArgumentError for a signal that cannot be handled, while another object
  /// or fit() of a Trainer handles signals, and in a thread of spawn_threads().
  explicit StopSignals(const std::vector<int>& signals = {SIGTERM, SIGUSR1});
  /// Raises a signal that has arrived. After should_stop() has returned true it raises none and leaves the handlers, since
  /// the process is to end with kExitInterrupted: the signal that has reached another rank may still come to this one.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether a signal has arrived at any rank. All ranks get the same answer; after true, it stays true. Collective over
  /// `process_group` (default: the default group or, without one, this process alone): one all-reduce of 8 bytes. To
  /// call it less often than each step, let the step decide, as in `step % 10 == 0 && signals.should_stop()`. Within
  /// elastic::run(), call it after commit() and return from the function. Throws the errors of an all-reduce.
  bool should_stop(const std::optional<ProcessGroup>& process_group = std::nullopt,
                   std::source_location where = std::source_location::current());
  /// Whether a signal has arrived at this rank, or should_stop() has returned true. No call. Safe from any thread.
  bool arrived() const;

 private:
  friend class Trainer;

  // The ranks stop, for signals that have arrived or still arrive.
  void stop() { stops_ = true; }
  void restore() noexcept;

  std::vector<int> signals_;
  std::atomic<bool> stops_ = false;
};

}  // namespace lockstep
