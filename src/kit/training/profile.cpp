// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <lockstep/training/profile.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/profiler_event.h"
#include "runtime/run.h"
#include "trace/chrome_trace.h"
#include "training/profiled_events.h"

namespace lockstep {
namespace {

namespace libtorch = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::chrono::nanoseconds unix_time() { return std::chrono::system_clock::now().time_since_epoch(); }

// The right to use LibTorch's profiler, whose Kineto is one for the process.
class ProfilerSlot {
 public:
  ProfilerSlot() : is_owned_(!taken_.exchange(true)) {}
  ~ProfilerSlot() {
    if (is_owned_) taken_ = false;
  }
  ProfilerSlot(const ProfilerSlot&) = delete;
  ProfilerSlot& operator=(const ProfilerSlot&) = delete;

  bool is_owned() const { return is_owned_; }

 private:
  static inline std::atomic<bool> taken_ = false;
  bool is_owned_;
};

// LibTorch's profiler in this thread: prepared, and later enabled.
class LibTorchProfiler {
 public:
  LibTorchProfiler() { libtorch::prepareProfiler(config_, activities_); }
  ~LibTorchProfiler() {
    try {
      if (!is_done_) finish();
    } catch (const std::exception&) {  // nothing is left to stop
    }
  }
  LibTorchProfiler(const LibTorchProfiler&) = delete;
  LibTorchProfiler& operator=(const LibTorchProfiler&) = delete;

  bool is_enabled() const { return is_enabled_; }
  void enable() {
    libtorch::enableProfiler(config_, activities_);
    is_enabled_ = true;
    comm::marks_calls = true;
  }
  std::unique_ptr<libtorch::ProfilerResult> finish() {
    is_done_ = true;
    if (!is_enabled_) enable();  // Kineto cannot cancel a preparation
    comm::marks_calls = false;
    return libtorch::disableProfiler();
  }

 private:
  static std::set<ActivityType> available_activities() {
    std::set<ActivityType> activities{ActivityType::CPU};
    if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
    return activities;
  }

  torch::profiler::impl::ProfilerConfig config_{torch::profiler::impl::ProfilerState::KINETO};
  std::set<ActivityType> activities_ = available_activities();
  bool is_enabled_ = false;
  bool is_done_ = false;
};

}  // namespace

struct Profiler::Parts {
  Parts(const ProfilerOptions& given, const std::optional<ProcessGroup>& given_group,
        std::source_location given_where)
      : options(given), group(given_group), where(given_where) {}

  bool on_first_rank() const { return !group || group->rank() == 0; }
  std::vector<std::string> from_all(const std::string& own) const {
    return group ? group->all_gather_object(own, where) : std::vector{own};
  }
  void check_schedule() const;
  void check_that_all_are_free(bool is_free);
  void begin_step();
  void finish(const Profiler& profiler);

  ProfilerOptions options;
  std::optional<ProcessGroup> group;
  std::source_location where;
  std::int64_t step = 0;
  bool is_done = false;
  // In the order of construction.
  std::optional<ProfilerSlot> slot;
  std::optional<LibTorchProfiler> libtorch_profiler;
  std::optional<at::RecordFunction> step_event;
  std::vector<OperatorTimes> key_averages;
};

void Profiler::Parts::check_schedule() const {
  const auto& [path, wait, warmup, active, on_trace_ready] = options;
  if (path.empty()) throw ArgumentError("Profiler: path is empty; give the file of the trace");
  if (wait < 0 || warmup < 0 || active < 1) {
    throw_error<ArgumentError>("Profiler: wait = {}, warmup = {}, active = {}; give at least 0, 0 and 1",
                               wait, warmup, active);
  }
  const auto all = from_all(fmt::format("wait {}, warmup {}, active {}", wait, warmup, active));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw_error<DesyncError>(ErrorDetails{.ranks = {static_cast<int>(rank)}},
                             "Profiler: the schedule of rank 0 is {}, and that of rank {} is {}", all[0],
                             rank, all[rank]);
  }
}

void Profiler::Parts::check_that_all_are_free(bool is_free) {
  const auto all = from_all(is_free ? "free" : "busy");
  const auto busy = std::ranges::find(all, "busy");
  if (busy == all.end()) return;
  is_done = true;
  libtorch_profiler.reset();
  slot.reset();
  throw_error<ArgumentError>(
      "Profiler: on rank {} a profiler is already active in this process; end it first, and run ranks as "
      "processes",
      busy - all.begin());
}

void Profiler::Parts::begin_step() {
  using torch::profiler::impl::profilerEnabled;
  if (step == options.wait) {
    slot.emplace();
    check_that_all_are_free(slot->is_owned() && !profilerEnabled());
    libtorch_profiler.emplace();
  }
  if (step == options.wait + options.warmup) {
    check_that_all_are_free(!profilerEnabled());
    libtorch_profiler->enable();
  }
  if (!libtorch_profiler || !libtorch_profiler->is_enabled()) return;
  step_event.emplace(at::RecordScope::USER_SCOPE);
  step_event->before(fmt::format("ProfilerStep#{}", step));
}

void Profiler::Parts::finish(const Profiler& profiler) {
  step_event.reset();
  is_done = true;
  const bool has_recorded = libtorch_profiler && libtorch_profiler->is_enabled();
  const auto result = has_recorded ? libtorch_profiler->finish() : nullptr;
  libtorch_profiler.reset();
  slot.reset();
  if (!has_recorded) return;
  const auto events = training::events_of(*result);
  const auto own = training::to_text(training::operator_times(events));
  const auto texts = group ? group->gather_object(own, 0, where) : std::vector{own};
  if (on_first_rank()) key_averages = training::summed(texts);
  tracing::write_chrome_trace(options.path, training::rank_trace(events), unix_time, group, where);
  if (!on_first_rank()) return;
  if (options.on_trace_ready) {
    options.on_trace_ready(profiler);
  } else {
    fmt::print("{}", profiler.table());
  }
}

Profiler::Profiler(const ProfilerOptions& options, const std::optional<ProcessGroup>& process_group,
                   std::source_location where)
    : parts_([&] {
        const CallerPlace place(where);
        return std::make_unique<Parts>(options, runtime::group_or_default(process_group, "Profiler"), where);
      }()) {
  const CallerPlace place(where);
  parts_->check_schedule();
  parts_->begin_step();
}

Profiler::~Profiler() = default;
Profiler::Profiler(Profiler&& other) noexcept = default;
Profiler& Profiler::operator=(Profiler&& other) noexcept = default;

void Profiler::step() {
  if (parts_->is_done) return;
  runtime::require_made_in_run(parts_->group, "Profiler");
  parts_->step_event.reset();
  if (++parts_->step == parts_->options.wait + parts_->options.warmup + parts_->options.active) {
    parts_->finish(*this);
  } else {
    parts_->begin_step();
  }
}

void Profiler::stop() {
  if (parts_->is_done) return;
  runtime::require_made_in_run(parts_->group, "Profiler");
  parts_->finish(*this);
}

const std::vector<OperatorTimes>& Profiler::key_averages() const { return parts_->key_averages; }

std::string Profiler::table(std::size_t row_limit) const {
  return training::table_of(key_averages(), row_limit);
}

Profiler profile(std::int64_t steps, const std::string& path, std::source_location where) {
  return Profiler({.path = path, .active = steps}, std::nullopt, where);
}

}  // namespace lockstep
