// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/host_layout.h"

#include <algorithm>
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
  const auto [least, most] = std::ranges::minmax_element(members_, {}, &std::vector<int>::size);
  lanes_ = static_cast<int>(least->size());
  largest_ = static_cast<int>(most->size());
}

std::vector<int> HostLayout::lane(int local_rank) const {
  std::vector<int> ranks;
  for (const auto& members : members_) ranks.push_back(members[static_cast<std::size_t>(local_rank)]);
  return ranks;
}

}  // namespace lockstep::backends
