// SPDX-License-Identifier: BSD-3-Clause
#include "node/rank_status.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/caller_place.h"
#include "observe/call_names.h"

namespace lockstep::node {
namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

const StatusEntry* find_note(const RankStatus& status, std::uint64_t number) {
  const auto& note = status.notes[number % RankStatus::kNotes];
  return note.number.load(std::memory_order_acquire) == number ? &note : nullptr;
}

void add_bytes(RankStatus& status, const CallRecord& record) {
  if (record.dtype == c10::ScalarType::Undefined) return;
  std::uint64_t bytes = c10::elementSize(record.dtype);
  for (const auto size : record.shape) bytes *= static_cast<std::uint64_t>(size);
  status.bytes.store(status.bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

constexpr std::int8_t kNone = -1;  // of dtypes and operations

constexpr unsigned kStepBits = 44;  // of step and forwards
constexpr unsigned kForwardBits = 12;
constexpr std::uint64_t kMostForwards = (1U << kForwardBits) - 1;

}  // namespace

std::uint64_t StepProgress::packed() const {
  return (object << kStepBits) + (step << kForwardBits) + std::min(forwards, kMostForwards);
}

std::uint64_t StepProgress::object_of(std::uint64_t packed) { return packed >> kStepBits; }

std::uint64_t StepProgress::step_of(std::uint64_t packed) {
  return (packed & ((std::uint64_t{1} << kStepBits) - 1)) >> kForwardBits;
}

std::uint64_t steps_begun(const RankStatus& status) {
  std::uint64_t most = 0;
  for (const auto& progress : status.progress) {
    const auto packed = progress.load(std::memory_order_acquire);
    if (packed != 0) most = std::max(most, StepProgress::step_of(packed) + 1);
  }
  return most;
}

const std::array<char, 61>& FileName::name_of(const char* path) {
  if (path == path_) return name_;
  path_ = path;
  const auto name = is_file_of_program(path) ? base_name(path) : std::string_view();
  name_.fill('\0');
  name.copy(name_.data(), name_.size() - 1);
  return name_;
}

void write_entry(RankStatus& status, const CallRecord& record, const CallPlace& place, FileName& file) {
  add_bytes(status, record);
  auto& note = status.notes[record.number % RankStatus::kNotes];
  note.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  note.issued_at = std::chrono::nanoseconds(record.issued_at.time_since_epoch()).count();
  note.kind = static_cast<std::uint8_t>(record.kind);
  note.dtype = record.dtype == c10::ScalarType::Undefined ? kNone : static_cast<std::int8_t>(record.dtype);
  note.op = record.op ? static_cast<std::int8_t>(*record.op) : kNone;
  note.peer = record.root >= 0 ? record.root : place.peer;
  note.sequence = place.sequence;
  note.dims = static_cast<std::uint8_t>(std::min<std::size_t>(record.shape.size(), 255));
  std::copy_n(record.shape.begin(), std::min(record.shape.size(), StatusEntry::kDims), note.shape.begin());
  note.file = file.name_of(record.where.file_name());
  note.line = note.file.front() == '\0' ? 0 : record.where.line();
  note.index = record.index;
  const auto length = std::min(record.contents.size(), note.contents.size() - 1);
  std::copy_n(record.contents.begin(), length, note.contents.begin());
  note.contents.at(length) = '\0';
  note.number.store(record.number, std::memory_order_release);
  status.issued.store(record.number, std::memory_order_release);
}

std::string in_brackets(std::string_view contents, int index) {
  if (contents.empty()) return "";
  return fmt::format(" ({}{})", contents, index < 0 ? "" : fmt::format(" {}", index));
}

std::string describe_entry(const RankStatus& status, std::uint64_t number) {
  const auto* note = find_note(status, number);
  if (note == nullptr) return fmt::format("call #{}", number);
  std::string text = fmt::format("{} #{}", observe::name_in(observe::kCallNames, note->kind), number);
  if (note->dtype >= 0) {
    const auto shown = std::min<std::size_t>(note->dims, StatusEntry::kDims);
    text += fmt::format(
        " of {}[{}{}]", observe::name_in(observe::kDtypeNames, note->dtype),
        fmt::join(note->shape.begin(), note->shape.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        note->dims > StatusEntry::kDims ? ", ..." : "");
  }
  if (note->line != 0) text += fmt::format(" at {}:{}", note->file.data(), note->line);
  return text + in_brackets(note->contents.data(), note->index);
}

std::int64_t issue_time_of_entry(const RankStatus& status, std::uint64_t number) {
  const auto* note = find_note(status, number);
  return note == nullptr ? 0 : note->issued_at;
}

std::chrono::milliseconds age_of_entry(const RankStatus& status, std::uint64_t number) {
  const auto* note = find_note(status, number);
  if (note == nullptr) return {};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now -
                                                               std::chrono::nanoseconds(note->issued_at));
}

}  // namespace lockstep::node
