// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/node/call_record.h>

#include "observe/status_layout.h"

namespace lockstep::node {

using observe::AbortNotice;
using observe::RankStatus;
using observe::StatusEntry;

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

// What a record of another rank's memory has beyond a CallRecord.
struct CallPlace {
  int peer = -1;               // of a message; -1: none or any
  std::uint64_t sequence = 0;  // among the collectives, or among the messages
};

void write_entry(RankStatus& status, const CallRecord& record, const CallPlace& place, FileName& file);

// " (gradients of bucket 2)"; empty without contents.
std::string in_brackets(std::string_view contents, int index);

// "all_reduce #12 of Float[64, 1, 3, 3] at train.cpp:40 (gradients of bucket 2)"; only the number if the record has been overwritten.
std::string describe_entry(const RankStatus& status, std::uint64_t number);

// When the call was issued, in nanoseconds of the steady clock; 0 if this is not known any more.
std::int64_t issue_time_of_entry(const RankStatus& status, std::uint64_t number);

// How long ago the call was issued; zero if this is not known any more.
std::chrono::milliseconds age_of_entry(const RankStatus& status, std::uint64_t number);

}  // namespace lockstep::node
