// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/version.h"

// How far a rank has come and what it does now, in memory that `lockstep top`, `lockstep recorder` and the launcher
// map read-only. A rank publishes it whether or not other ranks share its host.

namespace lockstep {

// What the thread that trains does. In the order of kPhaseNames.
enum class Phase : std::uint8_t {
  other,          // the program's own code
  forward,        // of a wrapped module
  backward,       // from the end of forward to the last gradient, the loss included
  communication,  // it waits for a call of a group
  data,           // it waits for a batch
  optimizer,      // from the averaged gradients to the next batch or forward
  checkpoint,     // it saves or loads one
};
inline constexpr std::size_t kPhases = 7;
inline constexpr std::array<std::string_view, kPhases> kPhaseNames{
    "other", "forward", "backward", "communication", "data", "optimizer", "checkpoint"};

// Nanoseconds in each phase since the rank began.
using PhaseTimes = std::array<std::int64_t, kPhases>;

// Only the rank writes it. All times are nanoseconds of the steady clock, which the processes of a host share.
struct RankProgress {
  static constexpr std::uint64_t kMark = 0x7373'6572'676F'724B;

  // An entry is valid if `number` is the same before and after it was read.
  struct Step {
    std::atomic<std::uint64_t> number{0};  // 0 during changes
    std::int64_t ended_at = 0;
    PhaseTimes spent = {};      // until then
    std::uint64_t samples = 0;  // until then
  };
  struct Memory {
    std::atomic<std::int64_t> at{0};  // 0 during changes
    std::int64_t resident = 0;        // bytes
    std::int64_t shared = 0;          // of these, mapped files and memory that processes share
  };
  struct Number {
    std::array<char, 40> name = {};
    std::atomic<double> value{0};
  };
  // A file that a thread reads.
  struct Reading {
    std::atomic<std::uint64_t> changes{0};  // odd during changes
    std::int64_t since = 0;                 // 0: none
    std::array<char, 240> path = {};        // its end
  };

  std::uint64_t format = formats::kRankProgress.number;
  std::atomic<std::uint64_t> mark{0};  // kMark once the next ones are written
  std::int64_t pid = 0;
  std::int64_t thread = 0;            // equal to pid unless the rank is a thread
  std::atomic<std::int32_t> rank{0};  // in the job
  std::atomic<std::int32_t> size{0};  // of the job
  std::int64_t began_at = 0;
  std::array<char, 64> host = {};
  std::atomic<bool> has_left{false};  // the run; its process may stay

  alignas(64) std::atomic<std::uintptr_t> trainer{0};  // the thread whose phases count
  std::atomic<std::uint64_t> changes{0};               // odd while the next three change
  std::atomic<Phase> phase{Phase::other};
  std::atomic<std::int64_t> phase_since{0};
  std::array<std::atomic<std::int64_t>, kPhases> spent = {};  // until phase_since

  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> samples{0};  // that loaders have given to the thread that trains
  std::atomic<std::int64_t> epoch{-1};    // of the loader; -1: not set
  std::atomic<std::int64_t> gathered{0};  // bytes of sharded parameters that are gathered now
  std::array<Step, 64> last_steps = {};   // step n has the place n % 64
  std::array<Memory, 64> memory = {};     // sampled at the ends of steps, at most once a second
  std::atomic<std::uint64_t> memory_samples{0};
  std::array<Number, 32> numbers = {};  // of report()
  std::atomic<std::uint32_t> number_count{0};
  std::array<Reading, 16> reading = {};
};

// The name of this memory, see memfd_create(2).
inline constexpr const char* kProgressName = "lockstep-progress";

// Nanoseconds of the steady clock.
std::int64_t steady_now() noexcept;

// This process, or this thread of spawn_threads(), becomes a rank and publishes. A process that has been one
// keeps its memory. Without memory for it the rank is not seen, and says so at LogLevel::debug.
void publish_progress(int rank, int size, bool is_thread);
// It leaves the run. A process keeps its memory, and is a rank again after the next publish_progress().
void end_progress(bool is_thread) noexcept;

// That of this thread's rank; nullptr without one. Valid as long as the rank is one.
const std::shared_ptr<RankProgress>& current_progress() noexcept;

// That of this thread's rank if its phases count; nullptr otherwise.
RankProgress* progress_of_trainer() noexcept;

// From now on the phases of this thread count.
void claim_phases(RankProgress& progress) noexcept;
// The phase begins. Called by one thread at a time. Returns the phase before.
Phase enter_phase(RankProgress& progress, Phase phase) noexcept;
// The steps that this thread's rank has counted; 0 without one.
std::uint64_t counted_steps() noexcept;
// A step ends: that of an object which has made `steps` - those counted when it was made. Counts it unless another
// object, with which it steps in turn, has made as many.
void count_step(RankProgress& progress, std::uint64_t steps) noexcept;

// A phase of the thread that trains; the phase before it continues at its end. Does nothing in another thread, and
// without a rank. A stack variable.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) noexcept;
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  RankProgress* progress_;
  Phase next_ = Phase::other;
};

// The gathered parameters that an object holds, as a part of RankProgress::gathered.
class GatheredBytes {
 public:
  GatheredBytes() = default;
  ~GatheredBytes() { set(0); }
  GatheredBytes(const GatheredBytes&) = delete;
  GatheredBytes& operator=(const GatheredBytes&) = delete;

  void set(std::int64_t bytes) noexcept;

 private:
  std::shared_ptr<RankProgress> progress_;
  std::int64_t bytes_ = 0;
};

// A file that this thread reads. A stack variable.
class ReadingScope {
 public:
  explicit ReadingScope(std::string_view path) noexcept;
  ~ReadingScope();
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

 private:
  std::shared_ptr<RankProgress> progress_;
  RankProgress::Reading* entry_ = nullptr;
};

// A number of the user by name. False if there is no room for another name. The name has at most kNameBytes.
// Safe from any thread. Does nothing without a rank.
inline constexpr std::size_t kNameBytes = sizeof(RankProgress::Number::name) - 1;
bool report_number(std::string_view name, double value) noexcept;

}  // namespace lockstep
