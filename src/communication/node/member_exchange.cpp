// SPDX-License-Identifier: BSD-3-Clause
#include "node/member_exchange.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/fd_passing.h"
#include "base/limits.h"
#include "base/throw_error.h"

namespace lockstep::node {
namespace {

constexpr auto kAcceptPollPeriod = std::chrono::milliseconds(50);
// For ranks that have read where to connect, once the store is gone.
constexpr auto kAfterStore = std::chrono::seconds(1);

UniqueFd own_process() {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!fd)
    throw_error<RendezvousError>("ranks of this host cannot watch each other: {}",
                                 call_error_text("pidfd_open", errno));
  return fd;
}

// The complaint of a rank that cannot join, empty if there is none; nullopt: the store is gone.
std::optional<std::string> complaint_at(const ExchangePoint& point) noexcept {
  try {
    return point.complaint();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The process, the segment and the heap if there is one.
std::vector<int> fds_of(const NodeMember& member) {
  std::vector<int> fds{member.process.get(), member.memory.segment->fd()};
  if (member.memory.heap) fds.push_back(member.memory.heap->fd());
  return fds;
}

// The member in a message that `own` received.
NodeMember member_from(FdMessage message, const NodeMember& own, int rank, const ExchangePoint& point) {
  auto& fds = message.fds;
  if (fds.size() != fds_of(own).size())
    throw RendezvousError("a rank of this host sent other memory than this rank; is it of this version?");
  try {
    NodeMember member{.process = std::move(fds[0])};
    auto segment = SharedMemory::map(std::move(fds[1]));
    if (rank != 0) segment.close_fd();  // rank 0 passes it on
    member.memory.segment = std::make_shared<const SharedMemory>(std::move(segment));
    // Not again when the group is formed again: that takes the time of all page faults.
    if (fds.size() > 2) member.memory.heap = SharedMemory::map_once(std::move(fds[2]));
    return member;
  } catch (const std::exception& error) {
    decline(rank, point, error.what());  // before the connections close
    throw;
  }
}

// The next connection. While none arrives, a rank may report why.
UniqueFd accept_rank(const LocalListener& listener, const ExchangePoint& point, const Deadline& deadline) {
  std::optional<Deadline> without_store;
  while (!deadline.expired()) {
    auto connection = accept_local(listener, Deadline(std::min(kAcceptPollPeriod, deadline.remaining())));
    if (connection) return connection;
    if (without_store && without_store->expired())
      throw Error("the process that serves the ranks' store has ended");
    if (without_store) continue;
    const auto complaint = complaint_at(point);
    if (!complaint) without_store.emplace(kAfterStore);
    if (complaint && !complaint->empty()) throw Error("a rank could not join");
  }
  return {};
}

std::vector<int> ranks_missing(const std::vector<NodeMember>& members) {
  std::vector<int> missing;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!members[i].memory.segment) missing.push_back(static_cast<int>(i));
  }
  return missing;
}

void collect_at_zero(std::vector<NodeMember>& members, const ExchangePoint& point, const Deadline& deadline) {
  const auto listener = listen_locally();
  point.publish(listener.name);
  std::vector<UniqueFd> connections(members.size());
  while (!ranks_missing(members).empty()) {
    auto connection = accept_rank(listener, point, deadline);
    if (!connection) {
      const auto missing = ranks_missing(members);
      throw_error<RendezvousError>(
          Reporter{0, static_cast<int>(members.size())}, ErrorDetails{.ranks = missing},
          "{} {} did not arrive to share memory within {} ms", missing.size() == 1 ? "rank" : "ranks",
          fmt::join(missing, ", "), deadline.timeout().count());
    }
    auto message = receive_fds(connection.get(), deadline);
    const std::size_t rank = message.number;
    if (rank >= members.size() || connections[rank])
      throw RendezvousError("two processes claim the same rank");
    members[rank] = member_from(std::move(message), members[0], 0, point);
    connections[rank] = std::move(connection);
  }
  for (std::size_t to = 1; to < members.size(); ++to) {
    for (std::size_t about = 0; about < members.size(); ++about) {
      if (about == to) continue;
      send_fds(connections[to].get(), static_cast<std::uint32_t>(about), fds_of(members[about]), deadline);
    }
  }
  for (std::size_t from = 1; from < members.size(); ++from)
    (void)receive_fds(connections[from].get(), deadline);
  for (std::size_t to = 1; to < members.size(); ++to) send_fds(connections[to].get(), 0, {}, deadline);
}

void collect_elsewhere(std::vector<NodeMember>& members, int rank, const ExchangePoint& point,
                       const Deadline& deadline) {
  const auto name = point.lookup();
  if (name.empty()) throw Error("rank 0 could not join");
  const auto connection = connect_locally(name, deadline);
  const auto own = static_cast<std::size_t>(rank);
  send_fds(connection.get(), static_cast<std::uint32_t>(rank), fds_of(members[own]), deadline);
  for (std::size_t expected = 1; expected < members.size(); ++expected) {
    auto message = receive_fds(connection.get(), deadline);
    const std::size_t about = message.number;
    if (about >= members.size() || about == own)
      throw RendezvousError("rank 0 sent the memory of an unexpected rank");
    members[about] = member_from(std::move(message), members[own], rank, point);
  }
  // No rank continues before all have mapped everything.
  send_fds(connection.get(), static_cast<std::uint32_t>(rank), {}, deadline);
  (void)receive_fds(connection.get(), deadline);
}

}  // namespace

void decline(int rank, const ExchangePoint& point, const std::string& reason) noexcept {
  try {
    point.complain(fmt::format("rank {}: {}", rank, reason));
    if (rank == 0) point.publish({});
  } catch (const std::exception&) {
    // The store is gone, and with it the ranks that would read this.
  }
}

std::vector<NodeMember> exchange_members(int rank, int size, RankMemory own, const ExchangePoint& point,
                                         const Deadline& deadline) {
  std::vector<NodeMember> members(static_cast<std::size_t>(size));
  if (point.threads) {
    const auto all = point.threads->exchange(point.group, rank, size, std::move(own), deadline);
    for (std::size_t i = 0; i < all.size(); ++i) members[i] = {all[i], own_process()};
    return members;
  }
  members[static_cast<std::size_t>(rank)] = {std::move(own), own_process()};
  try {
    if (rank == 0) {
      collect_at_zero(members, point, deadline);
    } else {
      collect_elsewhere(members, rank, point, deadline);
    }
  } catch (const RendezvousError&) {
    throw;
  } catch (const std::exception& error) {
    decline(rank, point, error.what());
    const auto complaint = complaint_at(point);
    throw_error<RendezvousError>(Reporter{rank, size}, "the ranks of this host could not share memory: {}",
                                 complaint.value_or("").empty() ? error.what() : *complaint);
  }
  return members;
}

}  // namespace lockstep::node
