// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

// Maps the ranks of a run to hosts.
class HostMap {
 public:
  // [rank]: number of its host.
  explicit HostMap(std::vector<int> hosts) : hosts_(std::move(hosts)) {}
  // [rank]: identity of its host, see host_identity().
  static HostMap of(const std::vector<std::string>& identities);

  // Run-length encoded: "4*0,4*1". from_text() throws RendezvousError for a malformed text.
  std::string text() const;
  static HostMap from_text(std::string_view text);

  bool all_on_one_host(const std::vector<int>& ranks) const;
  // Number of ranks on this rank's host, and of those among them with a lower rank.
  int local_size(int rank) const;
  int local_rank(int rank) const;

 private:
  int host(int rank) const { return hosts_.at(static_cast<std::size_t>(rank)); }

  std::vector<int> hosts_;
};

}  // namespace lockstep::rendezvous
