// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include <lockstep/base/mutex.h>

#include "backends/hierarchical/chunks.h"
#include "comm/call.h"

namespace lockstep::backends {

// Note [Hierarchical collectives]
//
// A collective over several hosts uses the ranks of this host (`host`, shared memory) and lanes (the
// network), each of which has one rank of every host.
//
//   all_reduce      large: reduce_scatter on the host; each lane reduces its share over the network;
//                   all_gather on the host. Chunk by chunk: the network reduces one chunk while the host
//                   reduces the next one. small: reduce to local rank 0; lane 0 reduces; broadcast on the
//                   host.
//   reduce_scatter  on each host, so that a rank has the host's sums for the other ranks of its lanes; each
//                   lane exchanges these; each rank adds what it receives in the order of the hosts. In
//                   chunks, as all_reduce.
//   all_to_all      all_to_all on each host, and over the network with the ranks of other hosts.
//   others          through local rank 0 of each host and lane 0.
//
// A sum is that of each host in the order of its ranks, then that of the hosts: in their order for
// reduce_scatter, in that of the network's backend for the others, which is the same on every rank and in
// every run. With two hosts it is (host 0) + (host 1).
//
// Bytes that a host sends for N bytes of input over H hosts: 2 (H-1)/H N in an all_reduce, where a ring over
// all ranks in the order of the hosts sends about 2 (R-1)/R N per host with R ranks, and other orders of
// ranks more; (H-1)/H N in a reduce_scatter.
//
// A call that fails on one rank leaves the others in the middle of it. So a rank whose call fails leaves the
// host and its lanes. The others notice that, and so do those of the other hosts. It first writes the reason
// to its rank status, where the ranks of the host find it, because only it knows which host has not answered.
// For the same reason calls over the network have a limit that is a bit shorter.

// All ranks make the same calls in the same order, from one thread at a time.
class HostCollectives {
 public:
  // `connect_all`: all ranks over the network, for this object alone; the first all_to_all calls it. `peers`:
  // for errors.
  HostCollectives(HostAndLanes group, std::function<Leg()> connect_all, Peers peers)
      : group_(std::move(group)), connect_all_(std::move(connect_all)), peers_(std::move(peers)) {}

  // Whether run() can make the call. The others have nothing to gain from shared memory.
  static bool can_run(const comm::Call& call);
  // Returns when the results are available, or throws at the latest at the call's timeout. Throws at once
  // after a call that has failed.
  void run(const comm::Call& call);
  // That of the first all_to_all on; before it nullptr. Any thread.
  Leg all_to_all_leg() const {
    const MutexLock lock(all_mutex_);
    return all_;
  }

 private:
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;

  void dispatch(const comm::Call& call);
  void leave(const std::string& reason) noexcept;
  std::string reasons_of_host() const;

  void all_reduce(const Tensor& row, ReduceOp op, const HierarchicalCall& call) const;
  void reduce_through_leader(const Tensor& row, ReduceOp op, const HierarchicalCall& call) const;
  void broadcast(const Tensor& row, int src, const HierarchicalCall& call) const;
  void reduce(const Tensor& row, int dst, ReduceOp op, const HierarchicalCall& call) const;
  Tensors all_gather(const Tensor& input, const HierarchicalCall& call) const;
  void all_to_all(const Tensors& outputs, const Tensors& inputs, const HierarchicalCall& call);
  void barrier(const HierarchicalCall& call) const;

  bool is_leader() const { return group_.layout.local_rank() == 0; }
  const Leg& first_lane() const { return group_.lanes.front(); }

  HostAndLanes group_;
  std::function<Leg()> connect_all_;
  Peers peers_;
  mutable Mutex all_mutex_;
  Leg all_ LOCKSTEP_GUARDED_BY(all_mutex_);
  bool has_failed_ = false;
  std::jthread closing_;
};

}  // namespace lockstep::backends
