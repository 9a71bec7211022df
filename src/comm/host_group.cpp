// SPDX-License-Identifier: BSD-3-Clause
#include "comm/host_group.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/host.h>

#include "comm/dying.h"
#include "comm/thread_state.h"

namespace lockstep::comm {
namespace {

// The backend's part begins at a huge page.
constexpr std::size_t kHugePage = 2 * 1024 * 1024;
// A reason is read again when it changed meanwhile; its rank may have been stopped in the middle.
constexpr int kTries = 1000;
// Ranks whose process is looked at in one search for a dead one; it costs some 10 us each.
constexpr int kLooks = 8;
static_assert(sizeof(NoteBoard) < kHugePage);

void introduce(NoteBoard& board) {
  board.pid = ::getpid();
  board.thread = ::gettid();
  const auto host = host_name();
  std::copy_n(host.begin(), std::min(host.size(), board.host.size() - 1), board.host.begin());
  for (const int core : affinity_cpus()) {
    const auto index = static_cast<std::size_t>(core);
    if (index / 64 < board.cores.size()) board.cores[index / 64] |= std::uint64_t{1} << index % 64;
  }
}

SharedMemory own_segment(int rank, HostGroup::Part part, const std::string& name, const MeetingPoint& point) {
  try {
    const auto offset = HostGroup::backend_offset();
    auto memory = SharedMemory::create("lockstep " + name, offset + part.bytes);
    memory.commit(0, sizeof(NoteBoard), "notes on calls");
    if (part.committed > 0) memory.commit(offset, part.committed, "passing data between ranks");
    introduce(*new (memory.data()) NoteBoard);
    return memory;
  } catch (const std::exception& error) {
    stay_away(rank, point, error.what());
    throw;
  }
}

}  // namespace

std::size_t HostGroup::backend_offset() { return kHugePage; }

std::shared_ptr<HostGroup> HostGroup::meet(int rank, int size, Part part, const std::string& name,
                                           const MeetingPoint& point, const Deadline& deadline) {
  auto members = meet_on_host(rank, size, own_segment(rank, part, name, point), point, deadline);
  for (const auto& member : members) {
    if (member.memory->size() == backend_offset() + part.bytes) continue;
    throw RendezvousError(
        fmt::format("rank {} of {}: the ranks bring memory of different sizes; do all run the same program?",
                    rank, size));
  }
  return std::shared_ptr<HostGroup>(new HostGroup(rank, std::move(members), point.threads ? ::gettid() : 0));
}

HostGroup::HostGroup(int rank, std::vector<HostMember> members, int owner)
    : rank_(rank), owner_(owner), members_(std::move(members)) {
  for (const auto& member : members_) {
    boards_.push_back(reinterpret_cast<NoteBoard*>(member.memory->data()));
    const int process = process_behind(member.process.get());
    processes_.push_back(process == ::getpid() ? 0 : process);
  }
}

int HostGroup::ranks_on_own_cores() const {
  const auto& own = own_board().cores;
  return static_cast<int>(std::ranges::count_if(boards_, [&](const NoteBoard* board) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      if ((board->cores[i] & ~own[i]) != 0) return false;
    }
    return true;
  }));
}

std::byte* HostGroup::backend_part(int rank) const {
  return members_[static_cast<std::size_t>(rank)].memory->data() + backend_offset();
}

bool HostGroup::has_died(int rank) const {
  pollfd entry{.fd = members_[static_cast<std::size_t>(rank)].process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 || is_dying(rank);
}

bool HostGroup::is_dying(int rank) const {
  const int process = processes_[static_cast<std::size_t>(rank)];
  return process != 0 && comm::is_dying(process);
}

int HostGroup::find_dead() const {
  std::vector<pollfd> entries;
  entries.reserve(members_.size());
  for (const auto& member : members_) entries.push_back({member.process.get(), POLLIN, 0});
  entries[static_cast<std::size_t>(rank_)].fd = -1;  // which poll() passes over
  if (::poll(entries.data(), entries.size(), 0) > 0) {
    const auto dead = std::ranges::find_if(entries, [](const pollfd& entry) { return entry.revents != 0; });
    return static_cast<int>(dead - entries.begin());
  }
  for (int look = 0; look < std::min(kLooks, size()); ++look) {
    const auto rank = static_cast<int>(next_look_.fetch_add(1) % static_cast<unsigned>(size()));
    if (rank != rank_ && is_dying(rank)) return rank;
  }
  return -1;
}

std::string HostGroup::name_of(int rank) const {
  const auto& other = board(rank);
  if (other.thread == other.pid)
    return fmt::format("rank {} (pid {} on {})", rank, other.pid, other.host.data());
  return fmt::format("rank {} (thread {} of pid {} on {})", rank, other.thread, other.pid, other.host.data());
}

std::string HostGroup::describe_rank(int rank) const {
  const auto& other = board(rank);
  const auto issued = other.issued.load(std::memory_order_acquire);
  const auto completed = other.completed.load(std::memory_order_acquire);
  const auto awaited = other.awaited.load(std::memory_order_acquire);
  const std::string done =
      completed == 0 ? "had completed no call" : "had completed " + describe_note(other, completed);
  if (has_died(rank)) {
    return fmt::format("{} is dead; it {}{}", name_of(rank), done,
                       issued > completed
                           ? " and was in " + describe_note(other, std::max(awaited, completed + 1))
                           : ", and had begun no other");
  }
  const auto state = describe_thread(static_cast<int>(other.thread));
  if (awaited != 0) {
    return fmt::format("{} has waited {:.1f} s in {} ({}); it {}", name_of(rank),
                       static_cast<double>(age_of_note(other, awaited).count()) / 1000,
                       describe_note(other, awaited), state, done);
  }
  return fmt::format("{} is in none of the group's calls ({}); it {}{}", name_of(rank), state, done,
                     issued > completed ? ", and had begun " + describe_note(other, issued) : "");
}

int HostGroup::last_to_issue(std::uint64_t number) const {
  int last = -1;
  std::int64_t latest = 0;
  for (int other = 0; other < size(); ++other) {
    const auto issued = issue_time_of_note(board(other), number);
    if (issued == 0) return -1;
    if (issued > latest) {
      latest = issued;
      last = other;
    }
  }
  return last;
}

bool HostGroup::have_all_issued(std::uint64_t number) const {
  for (int other = 0; other < size(); ++other) {
    if (board(other).issued.load(std::memory_order_acquire) < number) return false;
  }
  return true;
}

void HostGroup::refuse(std::uint64_t scope, const std::string& reason, bool is_final) const {
  auto& refusal = own_board().refusal;
  refusal.scope.store(0, std::memory_order_relaxed);
  refusal.changes.fetch_add(1, std::memory_order_acq_rel);
  std::atomic_thread_fence(std::memory_order_release);
  const auto length = std::min(reason.size(), refusal.reason.size() - 1);
  std::copy_n(reason.begin(), length, refusal.reason.begin());
  refusal.reason.at(length) = '\0';
  refusal.is_final.store(is_final, std::memory_order_relaxed);
  refusal.changes.fetch_add(1, std::memory_order_acq_rel);
  refusal.scope.store(scope, std::memory_order_release);
}

bool HostGroup::refuses(int rank, std::uint64_t scope) const {
  return scope != 0 && board(rank).refusal.scope.load(std::memory_order_acquire) == scope;
}

std::string HostGroup::reason_of(int rank) const {
  const auto& refusal = board(rank).refusal;
  std::string reason;
  for (int tries = 0; tries < kTries; ++tries) {
    const auto before = refusal.changes.load(std::memory_order_acquire);
    reason.assign(refusal.reason.data(), ::strnlen(refusal.reason.data(), refusal.reason.size()));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && refusal.changes.load(std::memory_order_relaxed) == before) break;
  }
  return reason;
}

std::string HostGroup::refusals() const {
  const auto scope = own_board().scope.load(std::memory_order_relaxed);
  const bool here = refuses(rank_, scope);
  std::string text;
  for (int other = 0; other < size(); ++other) {
    if (other == rank_ || !refuses(other, scope)) continue;
    const bool counts = !here || board(other).refusal.is_final.load(std::memory_order_relaxed);
    if (counts) text += fmt::format("\n  {}: {}", name_of(other), reason_of(other));
  }
  return text;
}

std::string HostGroup::describe_others() const {
  std::string text;
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) text += "\n  " + describe_rank(other);
  }
  return text;
}

}  // namespace lockstep::comm
