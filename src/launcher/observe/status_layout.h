// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/version.h"

// What a rank publishes about its calls in memory that other processes map: the ranks of its host, and
// `lockstep recorder` and `lockstep stacks`. Needs no LibTorch.

namespace lockstep::observe {

// A CallRecord. Only its rank writes it; `number` is 0 during changes.
struct alignas(64) StatusEntry {
  static constexpr std::size_t kDims = 5;

  std::atomic<std::uint64_t> number{0};
  std::int64_t issued_at = 0;  // nanoseconds of the steady clock, which all processes of a host share
  std::array<std::int64_t, kDims> shape = {};
  std::uint32_t line = 0;
  std::uint8_t kind = 0;   // a place in kCallNames
  std::int8_t dtype = -1;  // a place in kDtypeNames; -1: none
  std::uint8_t dims = 0;   // more than kDims: the rest is omitted
  std::array<char, 61> file = {};
  std::int32_t index = -1;
  std::array<char, 48> contents = {};
  std::int32_t peer = -1;      // of a message, or the root; -1: none or any
  std::int8_t op = -1;         // a place in kOpNames; -1: none
  std::uint64_t sequence = 0;  // among the collectives, or among the messages, from 1
};
static_assert(sizeof(StatusEntry) == 192);

// A step that a rank abandons, and the reason. Only its rank writes it.
struct AbortNotice {
  std::atomic<std::uint64_t> scope{0};    // which step, see RankStatus::scope; 0 while it changes
  std::atomic<std::uint64_t> changes{0};  // odd while it changes
  std::atomic<bool> is_final{false};      // the rank makes none of the step's calls
  std::array<char, 4000> reason = {};
};

// What a rank publishes about its calls in one group. Starts as zero bytes.
struct RankStatus {
  static constexpr std::size_t kNotes = 64;

  std::atomic<std::uint64_t> mark{0};  // kStatusMark once the next ones are written
  std::int64_t pid = 0;
  std::int64_t thread = 0;     // that joined the group; equal to pid for the main thread
  std::int32_t rank = -1;      // in the group, as messages give it
  std::int32_t size = 0;       // of the group, or of its part on this host
  std::int32_t job_rank = -1;  // the rank's number in the job; -1: `rank`
  std::array<char, 64> host = {};
  std::array<char, 16> backend = {};         // "shm"
  std::array<std::uint64_t, 16> cores = {};  // one bit for each of the first 1024 cores that it may use
  alignas(64) std::atomic<std::uint64_t> issued{0};  // number of the last call issued,
  std::atomic<std::uint64_t> completed{0};           // of the last call known to be complete,
  std::atomic<std::uint64_t> awaited{0};             // of the one that is waited for, or 0,
  std::atomic<std::uint64_t> failed{0};              // and of the last one that failed
  std::atomic<std::uint64_t> bytes{0};               // of the tensors of all calls
  std::array<StatusEntry, kNotes> notes = {};
  std::atomic<bool> has_finished{false};  // it has left the run without an error
  // How far the rank has come with each object that makes steps on the group: a node::StepProgress.
  static constexpr std::size_t kProgress = 64;
  std::array<std::atomic<std::uint64_t>, kProgress> progress = {};
  // While the rank waits for a step that others may abandon: its number, equal on all ranks. Otherwise 0.
  std::atomic<std::uint64_t> scope{0};
  alignas(64) AbortNotice refusal = {};
};

inline constexpr std::uint64_t kStatusMark = 0x7375'7461'7473'4B4C;  // "LKstatus"

// The start of a rank's memory. All versions begin with the numbers of their formats.
struct Segment {
  std::uint64_t recorder = formats::kFlightRecorder.number;
  std::uint64_t layout = formats::kSharedMemory.number;  // of the backend's part
  RankStatus status = {};
};

// The memory of a rank in a group is named so, see memfd_create(2).
inline constexpr const char* kMemoryPrefix = "lockstep ";

}  // namespace lockstep::observe
