// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

namespace lockstep::backends {

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
  int local_size() const { return static_cast<int>(members(host()).size()); }
  const std::vector<int>& members(int host) const { return members_[static_cast<std::size_t>(host)]; }
  int largest_host() const { return largest_; }
  // The local ranks 0 .. lanes()-1 exist on every host. Those of one local rank form a lane.
  int lanes() const { return lanes_; }
  std::vector<int> lane(int local_rank) const;

 private:
  int rank_;
  std::vector<int> host_of_;
  std::vector<int> local_rank_of_;
  std::vector<std::vector<int>> members_;  // [host]
  int lanes_ = 0;
  int largest_ = 0;
};

}  // namespace lockstep::backends
