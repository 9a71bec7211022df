// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

// Which ranks of a run share a host.
class HostTable {
 public:
  // [rank]: any number for its host.
  explicit HostTable(std::vector<int> hosts) : hosts_(std::move(hosts)) {}
  // [rank]: what its host is called; equal exactly on one host.
  static HostTable of(const std::vector<std::string>& identities);

  // Short even for many ranks, as neighbours mostly share a host: "4*0,4*1". Throws RendezvousError for a
  // text that is none.
  std::string text() const;
  static HostTable from_text(std::string_view text);

  bool all_on_one_host(const std::vector<int>& ranks) const;
  // Number of ranks on this rank's host, and of those among them with a lower rank.
  int local_size(int rank) const;
  int local_rank(int rank) const;

 private:
  int host(int rank) const { return hosts_.at(static_cast<std::size_t>(rank)); }

  std::vector<int> hosts_;
};

}  // namespace lockstep::rendezvous
