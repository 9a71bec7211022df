// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "backends/mpi/mpi_backend.h"
#include "base/deadline.h"

namespace lockstep::backends {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kGrace{1'000};  // for the answer of rank 0, which waits for all others

struct NoteText {
  std::uint32_t barrier = 0;  // its number in the group
  bool gives_up = false;      // its sender
};

class Note final : public mpi::Task {
 public:
  explicit Note(NoteText text) : text_(text) {}
  const NoteText& text() const { return text_; }
  std::byte* data() { return reinterpret_cast<std::byte*>(&text_); }

 private:
  NoteText text_;
};

std::shared_ptr<Note> start_note(MpiGroup& group, bool is_send, int peer, NoteText text = {}) {
  auto note = std::make_shared<Note>(text);
  const mpi::Message message{.is_send = is_send,
                             .peer = peer,
                             .tag = group.ranks->largest_tag() + 1,
                             .data = note->data(),
                             .bytes = sizeof(NoteText)};
  group.engine.start(note, [&] { return group.ranks->start(message); });
  return note;
}

// The peer's note about this barrier, whose receive is `note`; nothing if it does not come in time. Notes
// about earlier barriers, which this rank has given up, come first.
std::optional<NoteText> take_note(MpiGroup& group, std::shared_ptr<Note> note, int peer,
                                  std::uint32_t barrier, const Deadline& deadline) {
  while (true) {
    try {
      group.wait(*note, deadline.remaining());
    } catch (const TimeoutError&) {
      group.engine.cancel(*note);
      return std::nullopt;
    }
    if (note->text().barrier == barrier) return note->text();
    note = start_note(group, false, peer);
  }
}

}  // namespace

void MpiBackend::monitored_barrier(const comm::Call& call) {
  const auto limit = limit_of(call);
  ++monitored_barriers_;
  getRank() == 0 ? await_all(limit) : report_to_first(limit);
}

void MpiBackend::await_all(Milliseconds limit) {
  const Deadline deadline(limit);
  std::vector<std::shared_ptr<Note>> notes;
  for (int rank = 1; rank < getSize(); ++rank) notes.push_back(start_note(*group_, false, rank));
  std::vector<int> present;
  std::vector<std::string> missing;
  for (int rank = 1; rank < getSize(); ++rank) {
    const auto& note = notes[static_cast<std::size_t>(rank - 1)];
    if (take_note(*group_, note, rank, monitored_barriers_, deadline)) {
      present.push_back(rank);
    } else {
      missing.push_back(group_->name_of(rank));
    }
  }
  for (const int rank : present) {
    start_note(*group_, true, rank, {.barrier = monitored_barriers_, .gives_up = !missing.empty()});
  }
  if (missing.empty()) return;
  throw TimeoutError(fmt::format("{} {} not there after {} ms", fmt::join(missing, " and "),
                                 missing.size() == 1 ? "was" : "were", limit.count()));
}

void MpiBackend::report_to_first(Milliseconds limit) {
  const Deadline deadline(limit + kGrace);
  start_note(*group_, true, 0, {.barrier = monitored_barriers_});
  const auto answer = take_note(*group_, start_note(*group_, false, 0), 0, monitored_barriers_, deadline);
  if (!answer) {
    throw TimeoutError(fmt::format("{} was not there after {} ms", group_->name_of(0), limit.count()));
  }
  if (answer->gives_up) throw TimeoutError(fmt::format("{} gave up waiting", group_->name_of(0)));
}

}  // namespace lockstep::backends
