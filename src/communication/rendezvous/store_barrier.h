// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/version.h>

#include <lockstep/base/world.h>
#include <lockstep/comm/backend.h>
#include <lockstep/version.h>

#include "base/deadline.h"
#include "base/version.h"
#include "rendezvous/rank_info.h"

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
  // [i]: number of the host of ranks[i].
  std::vector<int> hosts_of(const std::vector<int>& ranks) const;
  // Number of ranks on this rank's host, and of those among them with a lower rank.
  int local_size(int rank) const;
  int local_rank(int rank) const;

 private:
  int host(int rank) const { return hosts_.at(static_cast<std::size_t>(rank)); }

  std::vector<int> hosts_;
};

// What all ranks of a run must have in common. They compare it when they arrive.
struct RankTerms {
  int world_size = 1;
  std::string backend{};  // as requested
  std::string lockstep = lockstep::version();
  std::string libtorch = TORCH_VERSION;
};

// One line for each term and one for the rank, which all versions read.
std::string to_text(const RankTerms& terms, int rank);

// Why this rank cannot be in a run with the rank that has written `first`, with both values; empty if it can.
std::string difference(const RankTerms& own, int rank, std::string_view first);

// In a run's store: the number of ranks that have left. Exists only when the run is ending.
inline constexpr const char* kLeftKey = "left";
// In a run's store: exists when the rank that serves the store is leaving. Other ranks may leave before it
// and come again, where groups are formed again.
inline constexpr const char* kServerLeftKey = "server_left";

// Registers this rank in the store and waits for all others. Throws RendezvousError naming the ranks that
// have not arrived by the deadline, or both values if one of this rank's terms differs from that of the rank
// that arrived first. Four requests per rank; the last rank makes four more. PyTorch: _store_based_barrier.
// While ranks are missing, calls `find_strangers` each second, or in pauses from 10 s for more than 64 ranks;
// its error ends the wait. Ranks that call it poll the store, with more requests.
void store_barrier(c10d::Store& store, int rank, const RankTerms& terms, const Deadline& deadline,
                   const std::function<void()>& find_strangers = {});

// Registers `rank` in the store of store_barrier().
std::string arrival_key(int rank);

// Looks for keys that no rank of store_barrier() has set, in a store that serves one run alone.
class StrangeKeys {
 public:
  explicit StrangeKeys(int world_size) : world_size_(world_size) {}

  // Whether there are as many of them as in the last call: ranks may arrive while it looks.
  bool found(c10d::Store& store);

 private:
  int world_size_;
  std::int64_t last_ = 0;
};

// Leaves the store as if all ranks had arrived on this host, and left.
void simulate_barrier(c10d::Store& store, int world_size);

// The hosts of the ranks. After store_barrier(). One request. Throws RendezvousError if the terms of a rank
// differ.
HostMap read_host_map(c10d::Store& store, int rank, int world_size);

// The numbers of this rank. Local numbers that the launcher has not set are computed from the hosts of the
// ranks.
World world_of(const HostMap& hosts, const RankInfo& rank_info);

}  // namespace lockstep::rendezvous
