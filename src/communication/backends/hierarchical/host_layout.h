// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::backends {

// Up to this size the latency of an all_reduce counts, not its bytes.
inline constexpr std::int64_t kSmallBytes = std::int64_t{32} * 1024;

// The network reduces one chunk while the hosts reduce the next one. Each chunk takes a message of every step
// of the ring, whose steps grow with the hosts, so the chunk grows too.
constexpr std::int64_t chunk_bytes(std::int64_t hosts) {
  constexpr std::int64_t kMebibyte = std::int64_t{1024} * 1024;
  return std::max(8 * kMebibyte, hosts * kMebibyte);
}

// Where the ranks of a group are, as one of them sees it. Hosts are numbered in the order of their first
// ranks, the ranks of a host in ascending order.
class HostLayout {
 public:
  // [rank]: any number of its host; and this rank.
  HostLayout(const std::vector<int>& hosts, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(members_.size()); }
  int host() const { return host_of(rank_); }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  // The number of a rank on its host.
  int local_rank() const { return local_rank_of(rank_); }
  int local_rank_of(int rank) const { return local_rank_of_[static_cast<std::size_t>(rank)]; }
  int local_size() const { return size_of(host()); }
  int size_of(int host) const { return static_cast<int>(members(host).size()); }
  const std::vector<int>& members(int host) const { return members_[static_cast<std::size_t>(host)]; }
  // A lane has one rank of each host; there are as many lanes as the largest host has ranks. On a host with
  // fewer ranks each serves several: those whose number is its own modulo the host's ranks.
  int lanes() const { return lanes_; }
  // The lanes of a rank of this host are local_rank, local_rank + local_size(), ...; this many at most.
  int lanes_of_each() const { return (lanes_ + local_size() - 1) / local_size(); }
  // [host]: its rank.
  std::vector<int> lane(int number) const;
  // The rank with this number on a host; -1 if the host has fewer.
  int member(int host, int number) const {
    return number < size_of(host) ? members(host)[static_cast<std::size_t>(number)] : -1;
  }
  // How many hosts have a rank with this number.
  int hosts_with(int number) const;

 private:
  int rank_;
  std::vector<int> host_of_;
  std::vector<int> local_rank_of_;
  std::vector<std::vector<int>> members_;  // [host]
  int lanes_ = 0;
};

inline HostLayout::HostLayout(const std::vector<int>& hosts, int rank) : rank_(rank) {
  std::map<int, int> numbers;
  for (int each = 0; each < static_cast<int>(hosts.size()); ++each) {
    const auto next = static_cast<int>(numbers.size());
    const int host = numbers.try_emplace(hosts[static_cast<std::size_t>(each)], next).first->second;
    if (host == next) members_.emplace_back();
    auto& members = members_[static_cast<std::size_t>(host)];
    host_of_.push_back(host);
    local_rank_of_.push_back(static_cast<int>(members.size()));
    members.push_back(each);
  }
  lanes_ = static_cast<int>(std::ranges::max(members_, {}, &std::vector<int>::size).size());
}

inline std::vector<int> HostLayout::lane(int number) const {
  std::vector<int> ranks;
  for (const auto& members : members_)
    ranks.push_back(members[static_cast<std::size_t>(number) % members.size()]);
  return ranks;
}

inline int HostLayout::hosts_with(int number) const {
  return static_cast<int>(std::ranges::count_if(
      members_, [number](const auto& members) { return number < static_cast<int>(members.size()); }));
}

}  // namespace lockstep::backends
