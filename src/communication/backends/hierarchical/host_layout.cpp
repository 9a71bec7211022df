// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/host_layout.h"

#include <map>

namespace lockstep::backends {

HostLayout::HostLayout(const std::vector<int>& hosts, int rank) : rank_(rank) {
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

std::vector<int> HostLayout::lane(int number) const {
  std::vector<int> ranks;
  for (const auto& members : members_)
    ranks.push_back(members[static_cast<std::size_t>(number) % members.size()]);
  return ranks;
}

int HostLayout::hosts_with(int number) const {
  return static_cast<int>(std::ranges::count_if(
      members_, [number](const auto& members) { return number < static_cast<int>(members.size()); }));
}

}  // namespace lockstep::backends
