// SPDX-License-Identifier: BSD-3-Clause
#include "node/flight_recorder.h"

#include <ctime>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/caller_place.h"
#include "observe/call_names.h"

namespace lockstep {

std::string_view name_of(CallKind kind) {
  static_assert(observe::kCallNames.size() == static_cast<std::size_t>(CallKind::barrier) + 1);
  return observe::kCallNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(ReduceOp op) {
  static_assert(observe::kOpNames.size() == static_cast<std::size_t>(ReduceOp::BXOR) + 1);
  return observe::kOpNames[static_cast<std::size_t>(op)];
}

std::string CallRecord::describe() const {
  std::string text{name_of(kind)};
  if (number != 0) text += fmt::format(" #{}", number);
  if (dtype != c10::ScalarType::Undefined) {
    text += fmt::format(" of {}[{}]", c10::toString(dtype), fmt::join(shape, ", "));
  }
  if (const auto line = line_text(where); !line.empty()) text += " at " + line;  // else a caller through c10d
  return text + node::in_brackets(contents, index);
}

namespace node {
namespace {

using Clock = std::chrono::steady_clock;

// The steady clock as of the last tick of the system, at a quarter of the price.
Clock::time_point time_of_last_tick() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

bool is_message(CallKind kind) { return kind == CallKind::send || kind == CallKind::recv; }

// Numbers of messages differ between ranks, so the last rank to start one is not defined.
Clock::time_point issue_time_of(CallKind kind) {
  return is_message(kind) ? time_of_last_tick() : Clock::now();
}

}  // namespace

CallRecord FlightRecorder::add(CallRecord record) {
  const MutexLock lock(mutex_);
  record.number = ++last_number_;
  note(record, -1);
  ring_[record.number % kKept] = record;
  return record;
}

void FlightRecorder::note(CallRecord& record, int peer) {
  record.state = CallState::issued;
  record.issued_at = issue_time_of(record.kind);
  const auto sequence = is_message(record.kind) ? ++messages_ : ++collectives_;
  if (status_ != nullptr) write_entry(*status_, record, {.peer = peer, .sequence = sequence}, file_);
}

void FlightRecorder::note_completed(std::uint64_t number) {
  if (status_ == nullptr) return;
  auto& completed = status_->completed;
  if (completed.load(std::memory_order_relaxed) < number) completed.store(number, std::memory_order_release);
}

void FlightRecorder::set_state(std::uint64_t number, CallState state) {
  const MutexLock lock(mutex_);
  auto& record = ring_[number % kKept];
  if (record.number == number) record.state = state;
  if (state == CallState::completed) note_completed(number);
  if (state == CallState::failed && status_ != nullptr)
    status_->failed.store(number, std::memory_order_release);
}

// Overwrites the record of an earlier call and reuses its memory for the shape.
std::uint64_t FlightRecorder::RecorderLock::begin(const CallDraft& draft) {
  const auto number = log_.last_number_ + 1;
  log_.ring_[number % kKept].shape.reserve(draft.shape.size());
  return log_.last_number_ = number;
}

void FlightRecorder::RecorderLock::note(std::uint64_t number, const CallDraft& draft) {
  auto& record = log_.ring_[number % kKept];
  record.number = number;
  record.kind = draft.kind;
  record.dtype = draft.dtype;
  record.shape.assign(draft.shape.begin(), draft.shape.end());
  record.op = draft.op;
  record.root = draft.root;
  record.where = draft.where;
  record.contents = draft.contents;
  record.index = draft.index;
  log_.note(record, draft.peer);
}

void FlightRecorder::RecorderLock::await(std::uint64_t number) {
  if (log_.status_ != nullptr) log_.status_->awaited.store(number, std::memory_order_release);
}

void FlightRecorder::RecorderLock::complete(std::uint64_t number) {
  auto& record = log_.ring_[number % kKept];
  if (record.number == number) record.state = CallState::completed;  // else overwritten during a pause
  log_.note_completed(number);
  if (log_.status_ == nullptr) return;
  auto& awaited = log_.status_->awaited;
  // Another thread may wait for another call.
  if (awaited.load(std::memory_order_relaxed) == number) awaited.store(0, std::memory_order_release);
}

std::uint64_t FlightRecorder::last_number() const {
  const MutexLock lock(mutex_);
  return last_number_;
}

void FlightRecorder::detach_status() {
  const MutexLock lock(mutex_);
  status_ = nullptr;
}

void FlightRecorder::set_awaited(std::uint64_t number) {
  const MutexLock lock(mutex_);
  if (status_ != nullptr) status_->awaited.store(number, std::memory_order_release);
}

std::vector<CallRecord> FlightRecorder::recent() const {
  const MutexLock lock(mutex_);
  std::vector<CallRecord> calls;
  const auto first = last_number_ > kKept ? last_number_ - kKept + 1 : 1;
  for (auto number = first; number <= last_number_; ++number) calls.push_back(ring_[number % kKept]);
  return calls;
}

}  // namespace node
}  // namespace lockstep
