// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// The times of one operator, summed over its calls on all ranks, in microseconds. PyTorch:
/// `FunctionEventAvg`.
struct OperatorTimes {
  std::string key;                    ///< its name
  std::int64_t count = 0;             ///< calls
  double self_cpu_time_total = 0;     ///< without the operators that it called; 0 if asynchronous
  double cpu_time_total = 0;          ///< with them
  double self_device_time_total = 0;  ///< of the kernels and copies that it started
};

class Profiler;

/// Options of Profiler.
struct ProfilerOptions {
  /// The file of the Chrome trace (chrome://tracing, ui.perfetto.dev), written by rank 0.
  std::string path;
  /// The schedule in steps, once: not recorded; not recorded, but the GPU's events are prepared; recorded.
  /// PyTorch: `torch.profiler.schedule`.
  std::int64_t wait = 1;
  std::int64_t warmup = 1;  ///< steps that are recorded and thrown away
  std::int64_t active = 3;  ///< steps that are recorded
  /// On rank 0 after the file has been written. By default it prints table().
  std::function<void(const Profiler&)> on_trace_ready = {};
};

/// Records some training steps of all ranks with LibTorch's profiler: operators, DDP's buckets, collective
/// calls and, where LibTorch has CUDA, kernels. Writes them as one Chrome trace with the times of all ranks
/// on one clock, and with flows between the events of one call on several ranks. Construct it before the
/// first step:
///
///     lockstep::Profiler profiler({.path = "trace.json", .wait = 1, .warmup = 1, .active = 3});
///     trainer.on_step([&](const at::Tensor&) { profiler.step(); });
///
/// Buckets, calls and other asynchronous events are in the lanes "communication". An event "ProfilerStep#2"
/// stands for the third step. The construction, the first and last recorded step and stop() are collective
/// calls. All functions are called by the thread that trains. The destructor discards what was not written.
/// PyTorch: `torch.profiler.profile`.
class Profiler {
 public:
  /// Without a group it is the default group or, outside of a run, this process alone. Throws ArgumentError
  /// for an empty path and an invalid schedule, DesyncError if the ranks' schedules differ.
  explicit Profiler(const ProfilerOptions& options,
                    const std::optional<ProcessGroup>& process_group = std::nullopt,
                    std::source_location where = std::source_location::current());
  ~Profiler();
  Profiler(Profiler&& other) noexcept;
  Profiler& operator=(Profiler&& other) noexcept;

  /// Ends a step. All ranks throw ArgumentError before the first recorded step if on one of them a profiler
  /// is already active; only one can be in a process, so ranks that are threads cannot be profiled. After the
  /// last recorded step see stop(). Costs nothing afterwards.
  void step();
  /// Ends the schedule and writes what was recorded; if that is nothing, does nothing. All ranks throw Error
  /// if the file cannot be written; key_averages() is valid nevertheless.
  void stop();

  /// On rank 0 after the last step, the operators of all ranks, the largest self_cpu_time_total first;
  /// otherwise empty. The steps are "ProfilerStep*".
  const std::vector<OperatorTimes>& key_averages() const;
  /// The first rows of key_averages() with each one's share of the total.
  std::string table(std::size_t row_limit = 20) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// A Profiler that records `steps` steps after the first two:
///
///     auto profiler = lockstep::profile(3, "trace.json");
///     for (auto& [images, labels] : loader) {
///       train(images, labels);
///       profiler.step();
///     }
[[nodiscard]] Profiler profile(std::int64_t steps, const std::string& path,
                               std::source_location where = std::source_location::current());

}  // namespace lockstep
