// SPDX-License-Identifier: BSD-3-Clause
#include "node/node_group.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/version.h>

#include "base/host.h"
#include "base/liveness.h"
#include "base/throw_error.h"
#include "base/version.h"

namespace lockstep::node {
namespace {

// The backend's part starts at a huge page.
constexpr std::size_t kHugePage = 2 * 1024 * 1024;
// A reason is read again if it changed meanwhile; its rank may have been stopped while it wrote.
constexpr int kTries = 1000;
// Processes that one search for a dead rank inspects; each costs about 10 us.
constexpr int kPolls = 8;

using observe::Segment;
static_assert(sizeof(Segment) < kHugePage);

Segment& segment_of(const NodeMember& member) {
  return *reinterpret_cast<Segment*>(member.memory.segment->data());
}

// Ranks compare their versions of Lockstep before. This finds builds of one version with different formats.
void check_format(int rank, std::size_t other, const Format& own, std::uint64_t found) {
  if (found == own.number) return;
  throw_error<RendezvousError>(
      ErrorDetails{.ranks = {static_cast<int>(other)}},
      "rank {} has {} format {} of Lockstep {}, but rank {} of this host has format {}; build the programs of "
      "all ranks from the same sources of Lockstep",
      rank, own.name, own.number, lockstep::version(), other, found);
}

// "1 call", "2 calls"
std::string count(std::uint64_t number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

void introduce(RankStatus& status, int rank, int size) {
  status.rank = rank;
  status.size = size;
  status.pid = ::getpid();
  status.thread = ::gettid();
  const auto host = host_name();
  std::copy_n(host.begin(), std::min(host.size(), status.host.size() - 1), status.host.begin());
  for (const int core : affinity_cpus()) {
    const auto index = static_cast<std::size_t>(core);
    if (index / 64 < status.cores.size()) status.cores[index / 64] |= std::uint64_t{1} << index % 64;
  }
  status.mark.store(observe::kStatusMark, std::memory_order_release);
}

RankMemory own_memory(int rank, int size, const NodeGroup::Part& part, const std::string& name,
                      const ExchangePoint& point) {
  try {
    const auto offset = NodeGroup::backend_offset();
    auto memory = SharedMemory::create(observe::kMemoryPrefix + name, offset + part.bytes);
    memory.commit(0, sizeof(Segment), "notes on calls");
    if (part.committed > 0) memory.commit(offset, part.committed, "passing data between ranks");
    introduce((new (memory.data()) Segment)->status, rank, size);
    return {.segment = std::make_shared<const SharedMemory>(std::move(memory)),
            .heap = part.heap ? part.heap() : nullptr};
  } catch (const std::exception& error) {
    decline(rank, point, error.what());
    throw;
  }
}

}  // namespace

std::size_t NodeGroup::backend_offset() { return kHugePage; }

std::shared_ptr<NodeGroup> NodeGroup::meet(int rank, int size, Part part, const std::string& name,
                                           const ExchangePoint& point, const Deadline& deadline) {
  auto members = exchange_members(rank, size, own_memory(rank, size, part, name, point), point, deadline);
  for (std::size_t other = 0; other < members.size(); ++other) {
    const auto& segment = segment_of(members[other]);
    check_format(rank, other, formats::kFlightRecorder, segment.recorder);
    check_format(rank, other, formats::kSharedMemory, segment.layout);
    if (members[other].memory.segment->size() == backend_offset() + part.bytes) continue;
    throw_error<RendezvousError>(Reporter{rank, size}, ErrorDetails{.ranks = {static_cast<int>(other)}},
                                 "the ranks share memory of different sizes; do all run the same program?");
  }
  return std::shared_ptr<NodeGroup>(new NodeGroup(rank, std::move(members), point.threads ? ::gettid() : 0));
}

NodeGroup::NodeGroup(int rank, std::vector<NodeMember> members, int owner)
    : rank_(rank), owner_(owner), members_(std::move(members)) {
  for (const auto& member : members_) {
    statuses_.push_back(&segment_of(member).status);
    const int process = process_of_pidfd(member.process.get());
    processes_.push_back(process == ::getpid() ? 0 : process);
  }
}

void NodeGroup::set_shown_ranks(std::vector<int> numbers) {
  shown_ranks_ = std::move(numbers);
  own_status().rank = shown_ranks_.at(static_cast<std::size_t>(rank_));
}

void NodeGroup::set_global_ranks(std::vector<int> ranks) {
  global_ranks_ = std::move(ranks);
  own_status().job_rank = global_ranks_.at(static_cast<std::size_t>(rank_));
}

void NodeGroup::set_backend(const std::string& name) {
  auto& own = own_status().backend;
  std::copy_n(name.begin(), std::min(name.size(), own.size() - 1), own.begin());
}

int NodeGroup::ranks_on_own_cores() const {
  const auto& own = own_status().cores;
  return static_cast<int>(std::ranges::count_if(statuses_, [&](const RankStatus* status) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      if ((status->cores[i] & ~own[i]) != 0) return false;
    }
    return true;
  }));
}

std::byte* NodeGroup::backend_part(int rank) const {
  return members_[static_cast<std::size_t>(rank)].memory.segment->data() + backend_offset();
}

std::byte* NodeGroup::heap(int rank) const {
  return members_[static_cast<std::size_t>(rank)].memory.heap->data();
}

std::size_t NodeGroup::own_heap_bytes() const {
  return members_[static_cast<std::size_t>(rank_)].memory.heap->size();
}

bool NodeGroup::has_died(int rank) const {
  pollfd entry{.fd = members_[static_cast<std::size_t>(rank)].process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 || is_exiting(rank);
}

bool NodeGroup::is_lost(int rank) const {
  const auto& other = status(rank);
  if (other.scope.load(std::memory_order_acquire) == kFormingScope) return true;
  return has_died(rank) && !other.has_finished.load(std::memory_order_acquire);
}

std::vector<int> NodeGroup::lost_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_ && is_lost(rank)) ranks.push_back(rank);
  return ranks;
}

bool NodeGroup::is_exiting(int rank) const {
  const int process = processes_[static_cast<std::size_t>(rank)];
  return process != 0 && lockstep::is_exiting(process);
}

int NodeGroup::find_dead() const {
  std::vector<pollfd> entries;
  entries.reserve(members_.size());
  for (const auto& member : members_) entries.push_back({member.process.get(), POLLIN, 0});
  entries[static_cast<std::size_t>(rank_)].fd = -1;  // which poll() passes over
  if (::poll(entries.data(), entries.size(), 0) > 0) {
    const auto dead = std::ranges::find_if(entries, [](const pollfd& entry) { return entry.revents != 0; });
    return static_cast<int>(dead - entries.begin());
  }
  for (int poll = 0; poll < std::min(kPolls, size()); ++poll) {
    const auto rank = static_cast<int>(next_poll_.fetch_add(1) % static_cast<unsigned>(size()));
    if (rank != rank_ && is_exiting(rank)) return rank;
  }
  return -1;
}

std::string NodeGroup::describe_dead() const {
  constexpr std::size_t kNamed = 16;
  std::vector<std::string> named;
  std::size_t others = 0;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_ || !has_died(rank)) continue;
    if (named.size() == kNamed) {
      ++others;
    } else {
      named.push_back(name_of(rank));
    }
  }
  return fmt::format("{}{}", fmt::join(named, ", "), others == 0 ? "" : fmt::format(" and {} more", others));
}

std::string NodeGroup::name_of(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  const auto& other = status(rank);
  return fmt::format("rank {} ({}{}pid {} on {})", shown_ranks_.empty() ? rank : shown_ranks_[index],
                     global_ranks_.empty() ? "" : fmt::format("global rank {}, ", global_ranks_[index]),
                     other.thread == other.pid ? "" : fmt::format("thread {} of ", other.thread), other.pid,
                     other.host.data());
}

ErrorDetails NodeGroup::details_of(const std::vector<int>& ranks) const {
  ErrorDetails details;
  for (const int rank : ranks)
    details.ranks.push_back(shown_ranks_.empty() ? rank : shown_ranks_[static_cast<std::size_t>(rank)]);
  if (!ranks.empty()) details.host = status(ranks.front()).host.data();
  return details;
}

std::string NodeGroup::describe_rank(int rank) const {
  const auto& other = status(rank);
  const auto issued = other.issued.load(std::memory_order_acquire);
  const auto completed = other.completed.load(std::memory_order_acquire);
  const auto awaited = other.awaited.load(std::memory_order_acquire);
  const std::string done =
      completed == 0 ? "had completed no call" : "had completed " + describe_entry(other, completed);
  if (has_died(rank)) {
    const bool has_finished = other.has_finished.load(std::memory_order_acquire);
    return fmt::format("{} {}; it {}{}", name_of(rank), has_finished ? "has finished" : "is dead", done,
                       issued > completed
                           ? " and was in " + describe_entry(other, std::max(awaited, completed + 1))
                           : ", and had begun no other");
  }
  const auto state = describe_thread(static_cast<int>(other.thread));
  if (awaited != 0) {
    return fmt::format("{} has waited {:.1f} s in {} ({}); it {}", name_of(rank),
                       static_cast<double>(age_of_entry(other, awaited).count()) / 1000,
                       describe_entry(other, awaited), state, done);
  }
  return fmt::format("{} is in none of the group's calls ({}); it {}{}", name_of(rank), state, done,
                     issued > completed ? ", and had begun " + describe_entry(other, issued) : "");
}

int NodeGroup::last_to_issue(std::uint64_t number) const {
  int last = -1;
  std::int64_t latest = 0;
  for (int other = 0; other < size(); ++other) {
    const auto issued = issue_time_of_entry(status(other), number);
    if (issued == 0) return -1;
    if (issued > latest) {
      latest = issued;
      last = other;
    }
  }
  return last;
}

std::vector<int> NodeGroup::ranks_without(std::uint64_t number) const {
  std::vector<int> ranks;
  for (int other = 0; other < size(); ++other) {
    if (status(other).issued.load(std::memory_order_acquire) < number) ranks.push_back(other);
  }
  return ranks;
}

void NodeGroup::refuse(std::uint64_t scope, const std::string& reason, bool is_final) const {
  auto& refusal = own_status().refusal;
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

bool NodeGroup::refuses(int rank, std::uint64_t scope) const {
  return scope != 0 && status(rank).refusal.scope.load(std::memory_order_acquire) == scope;
}

std::string NodeGroup::reason_of(int rank) const {
  const auto& refusal = status(rank).refusal;
  std::string reason;
  for (int tries = 0; tries < kTries; ++tries) {
    const auto before = refusal.changes.load(std::memory_order_acquire);
    reason.assign(refusal.reason.data(), ::strnlen(refusal.reason.data(), refusal.reason.size()));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && refusal.changes.load(std::memory_order_relaxed) == before) break;
  }
  return reason;
}

std::vector<int> NodeGroup::refusing_ranks() const {
  const auto scope = own_status().scope.load(std::memory_order_relaxed);
  const bool here = refuses(rank_, scope);
  std::vector<int> ranks;
  for (int other = 0; other < size(); ++other) {
    if (other == rank_ || !refuses(other, scope)) continue;
    const bool counts = !here || status(other).refusal.is_final.load(std::memory_order_relaxed);
    if (counts) ranks.push_back(other);
  }
  return ranks;
}

std::string NodeGroup::refusals() const {
  std::string text;
  for (const int other : refusing_ranks())
    text += fmt::format("\n  {}: {}", name_of(other), reason_of(other));
  return text;
}

std::string NodeGroup::describe_others() const {
  std::string text;
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) text += "\n  " + describe_rank(other);
  }
  return text;
}

std::vector<int> NodeGroup::finished_ranks() const {
  std::vector<int> finished;
  for (int other = 0; other < size(); ++other) {
    const bool has_finished = status(other).has_finished.load(std::memory_order_acquire);
    if (other == rank_) continue;
    if (!has_finished && has_died(other)) return {};
    if (has_finished) finished.push_back(other);
  }
  return finished;
}

std::string NodeGroup::describe_finished() const {
  std::vector<std::string> finished;
  for (const int other : finished_ranks()) {
    const auto steps = steps_begun(status(other));
    const auto calls = count(status(other).issued.load(std::memory_order_acquire), "call");
    finished.push_back(fmt::format("{} finished after {}", name_of(other),
                                   steps == 0 ? calls : fmt::format("{} ({})", count(steps, "step"), calls)));
  }
  return fmt::format("{}", fmt::join(finished, " and "));
}

}  // namespace lockstep::node
