// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/group.h"

#include <algorithm>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/throw_error.h"
#include "comm/peer_check.h"
#include "comm/unendable_call.h"

namespace lockstep::backends {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kNameLimit{500};  // an error may come before the news of the death
constexpr Milliseconds kGrace{1'000};    // for the answer of rank 0, which waits for all others

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

void await_all(MpiGroup& group, int size, std::uint32_t number, Milliseconds limit) {
  const Deadline deadline(limit);
  std::vector<std::shared_ptr<Note>> notes;
  for (int rank = 1; rank < size; ++rank) notes.push_back(start_note(group, false, rank));
  std::vector<int> present;
  std::vector<int> missing;
  for (int rank = 1; rank < size; ++rank) {
    const auto& note = notes[static_cast<std::size_t>(rank - 1)];
    if (take_note(group, note, rank, number, deadline)) {
      present.push_back(rank);
    } else {
      missing.push_back(rank);
    }
  }
  for (const int rank : present) {
    start_note(group, true, rank, {.barrier = number, .gives_up = !missing.empty()});
  }
  if (missing.empty()) return;
  throw_error<TimeoutError>(group.details_of(missing), "{} {} not there after {} ms", group.names_of(missing),
                            missing.size() == 1 ? "was" : "were", limit.count());
}

void report_to_first(MpiGroup& group, std::uint32_t number, Milliseconds limit) {
  const Deadline deadline(limit + kGrace);
  start_note(group, true, 0, {.barrier = number});
  const auto answer = take_note(group, start_note(group, false, 0), 0, number, deadline);
  if (!answer) {
    throw_error<TimeoutError>(group.details_of({0}), "{} was not there after {} ms", group.name_of(0),
                              limit.count());
  }
  if (answer->gives_up)
    throw_error<TimeoutError>(group.details_of({0}), "{} gave up waiting", group.name_of(0));
}

}  // namespace

std::string MpiGroup::name_of(int rank) const {
  return node ? node->name_of(rank) : fmt::format("rank {}", rank);
}

std::string MpiGroup::names_of(const std::vector<int>& some) const {
  std::vector<std::string> names;
  for (const int rank : some) names.push_back(name_of(rank));
  return fmt::format("{}", fmt::join(names, " and "));
}

ErrorDetails MpiGroup::details_of(const std::vector<int>& some) const {
  return node ? node->details_of(some) : ErrorDetails{.ranks = some};
}

void MpiGroup::wait(mpi::Task& task, std::chrono::milliseconds timeout) const {
  engine.wait(task, timeout, [&](bool is_late) {
    // Where MPI gives only one thread, the engine's thread advances the task, unless it waits in MPI itself.
    const auto is_done = [&] { return engine.takes_all_threads() ? engine.test(task) : task.is_done(); };
    comm::NodeWait{node.get(), is_done, comm::late_error(is_late, timeout), comm::is_terminated()}.check();
  });
}

void MpiGroup::guard(const std::function<void()>& job) const {
  try {
    job();
  } catch (const PeerLost& error) {
    fail(error);
  } catch (const TimeoutError&) {
    throw;
  } catch (const DesyncError&) {
    throw;
  } catch (const Error& error) {
    // Non-blocking collectives of Open MPI have other errors for some losses.
    if (!has_lost_ranks()) throw;
    fail(error);
  }
}

bool MpiGroup::has_lost_ranks() const {
  bool lost = false;
  if (!engine.library().survives_lost_ranks()) return false;
  engine.run([&] { lost = ranks->is_revoked() || !ranks->lost_ranks().empty(); });
  return lost;
}

void MpiGroup::fail(const Error& reason) const {
  engine.spoil();
  if (!engine.library().survives_lost_ranks()) throw PeerLost(reason.what(), reason.details());
  revoke();
  const auto lost = await_lost_ranks();
  if (lost.empty()) throw PeerLost(reason.what(), reason.details());
  throw_error<PeerLost>(details_of(lost), "{} died", names_of(lost));
}

void MpiGroup::revoke() const noexcept {
  if (engine.has_ended() || !engine.library().survives_lost_ranks()) return;
  try {
    engine.run([this] { ranks->revoke(); });
  } catch (const std::exception& error) {
    log(LogLevel::warning, error.what());
  }
}

// By their ranks in the group.
std::vector<int> MpiGroup::await_lost_ranks() const {
  const Deadline deadline(kNameLimit);
  while (true) {
    std::vector<int> lost;
    engine.run([&] { lost = ranks->lost_ranks(); });
    const int dead = node ? node->find_dead() : -1;
    if (dead >= 0 && std::ranges::find(lost, dead) == lost.end()) lost.push_back(dead);
    if (!lost.empty() || deadline.expired()) return lost;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void monitored_barrier(MpiGroup& group, int rank, int size, std::uint32_t number, Milliseconds limit) {
  rank == 0 ? await_all(group, size, number, limit) : report_to_first(group, number, limit);
}

}  // namespace lockstep::backends
