// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "backends/mpi/mpi_backend.h"
#include "base/deadline.h"

namespace lockstep::backends {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kGrace{1'000};  // for the answer of rank 0, which waits for all others

// A message of one byte: whether its sender gave up.
class Note final : public mpi::Task {
 public:
  explicit Note(bool gives_up = false) : byte_(std::byte{gives_up}) {}
  bool gives_up() const { return byte_ != std::byte{0}; }
  std::byte* data() { return &byte_; }

 private:
  std::byte byte_;
};

std::shared_ptr<Note> start_note(MpiGroup& group, bool is_send, int peer, bool gives_up = false) {
  auto note = std::make_shared<Note>(gives_up);
  const mpi::Message message{.is_send = is_send,
                             .peer = peer,
                             .tag = group.ranks->largest_tag() + 1,
                             .data = note->data(),
                             .bytes = 1};
  group.engine.start(note, [&] { return group.ranks->start(message); });
  return note;
}

// False: it did not come in time.
bool has_come(MpiGroup& group, Note& note, Milliseconds limit) {
  try {
    group.engine.wait(note, limit, [&] { group.look_around(); });
    return true;
  } catch (const TimeoutError&) {
    group.engine.cancel(note);
    return false;
  }
}

}  // namespace

void MpiBackend::monitored_barrier(const comm::Call& call) {
  const auto limit = limit_of(call);
  getRank() == 0 ? await_all(limit) : report_to_first(limit);
}

void MpiBackend::await_all(Milliseconds limit) {
  const Deadline deadline(limit);
  std::vector<std::shared_ptr<Note>> notes;
  for (int rank = 1; rank < getSize(); ++rank) notes.push_back(start_note(*group_, false, rank));
  std::vector<int> present;
  std::vector<std::string> missing;
  for (int rank = 1; rank < getSize(); ++rank) {
    auto& note = *notes[static_cast<std::size_t>(rank - 1)];
    if (has_come(*group_, note, deadline.remaining())) {
      present.push_back(rank);
    } else {
      missing.push_back(group_->name_of(rank));
    }
  }
  for (const int rank : present) start_note(*group_, true, rank, !missing.empty());
  if (missing.empty()) return;
  throw TimeoutError(fmt::format("{} {} not there after {} ms", fmt::join(missing, " and "),
                                 missing.size() == 1 ? "was" : "were", limit.count()));
}

void MpiBackend::report_to_first(Milliseconds limit) {
  start_note(*group_, true, 0);
  const auto answer = start_note(*group_, false, 0);
  if (!has_come(*group_, *answer, limit + kGrace)) {
    throw TimeoutError(fmt::format("{} was not there after {} ms", group_->name_of(0), limit.count()));
  }
  if (answer->gives_up()) throw TimeoutError(fmt::format("{} gave up waiting", group_->name_of(0)));
}

}  // namespace lockstep::backends
