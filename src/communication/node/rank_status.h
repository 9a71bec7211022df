// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/node/call_record.h>

namespace lockstep::node {

// A CallRecord in memory that other processes read. Only its rank writes it; `number` is 0 during changes.
struct alignas(64) StatusEntry {
  static constexpr std::size_t kDims = 5;

  std::atomic<std::uint64_t> number{0};
  std::int64_t issued_at = 0;  // nanoseconds of the steady clock, which all processes of a host share
  std::array<std::int64_t, kDims> shape = {};
  std::uint32_t line = 0;
  CallKind kind = CallKind::barrier;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::uint8_t dims = 0;  // more than kDims: the rest is omitted
  std::array<char, 61> file = {};
  std::int32_t index = -1;
  std::array<char, 48> contents = {};
};

// A step that a rank abandons, and the reason. Only its rank writes it.
struct AbortNotice {
  std::atomic<std::uint64_t> scope{0};    // which step, see RankStatus::scope; 0 while it changes
  std::atomic<std::uint64_t> changes{0};  // odd while it changes
  std::atomic<bool> is_final{false};      // the rank makes none of the step's calls
  std::array<char, 4000> reason = {};
};

// What a rank publishes to the other ranks of its host about its calls in one group. Starts as zero bytes.
struct RankStatus {
  static constexpr std::size_t kNotes = 64;

  std::int64_t pid = 0;
  std::int64_t thread = 0;  // that joined the group; equal to pid for the main thread
  std::array<char, 64> host = {};
  std::array<std::uint64_t, 16> cores = {};  // one bit for each of the first 1024 cores that it may use
  alignas(64) std::atomic<std::uint64_t> issued{0};  // number of the last call issued,
  std::atomic<std::uint64_t> completed{0};           // of the last call known to be complete,
  std::atomic<std::uint64_t> awaited{0};             // and of the one that is waited for, or 0
  std::array<StatusEntry, kNotes> notes = {};
  std::atomic<bool> has_finished{false};  // it has left the run without an error
  // How far the rank has come with each object that makes steps on the group: a StepProgress.
  static constexpr std::size_t kProgress = 64;
  std::array<std::atomic<std::uint64_t>, kProgress> progress = {};
  // While the rank waits for a step that others may abandon: its number, equal on all ranks. Otherwise 0.
  std::atomic<std::uint64_t> scope{0};
  alignas(64) AbortNotice refusal = {};
};

// How far a rank has come with an object that makes steps, such as a DistributedDataParallel. As one number,
// it grows with steps and forwards.
struct StepProgress {
  std::uint64_t object = 0;  // its number in the group, from 1
  std::uint64_t step = 0;
  std::uint64_t forwards = 0;  // begun in this step

  std::uint64_t packed() const;
  static std::uint64_t object_of(std::uint64_t packed);
  static std::uint64_t step_of(std::uint64_t packed);
};

// The number of steps that the rank has begun with the object of which it has begun the most.
std::uint64_t steps_begun(const RankStatus& status);

// The last part of a source file's path, as records hold it. Consecutive calls often have the same place, so
// it is cached.
class FileName {
 public:
  const std::array<char, 61>& name_of(const char* path);

 private:
  const char* path_ = nullptr;
  std::array<char, 61> name_ = {};
};

void write_entry(RankStatus& status, const CallRecord& record, FileName& file);

// " (gradients of bucket 2)"; empty without contents.
std::string in_brackets(std::string_view contents, int index);

// "all_reduce #12 of Float[64, 1, 3, 3] at train.cpp:40 (gradients of bucket 2)"; only the number if the record has been overwritten.
std::string describe_entry(const RankStatus& status, std::uint64_t number);

// When the call was issued, in nanoseconds of the steady clock; 0 if this is not known any more.
std::int64_t issue_time_of_entry(const RankStatus& status, std::uint64_t number);

// How long ago the call was issued; zero if this is not known any more.
std::chrono::milliseconds age_of_entry(const RankStatus& status, std::uint64_t number);

}  // namespace lockstep::node
