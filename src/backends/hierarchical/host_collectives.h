// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <lockstep/comm/process_group.h>

#include "backends/hierarchical/host_layout.h"
#include "comm/call.h"

namespace lockstep::backends {

// Note [Hierarchical collectives]
//
// A collective over several hosts uses the ranks of this host (`host`, shared memory) and the ranks with this
// local rank on all hosts (`lane`, the network). A host with more ranks than another has ranks without a
// lane.
//
//   all_reduce  large: all_reduce on the host; each lane reduces its share over the network; all_gather on
//   the
//               host. Chunk by chunk: the network reduces one chunk while the host reduces the next one.
//               small: reduce to local rank 0; lane 0 reduces; broadcast on the host.
//   others      through local rank 0 of each host and lane 0.
//
// A sum is that of each host in the order of its ranks, then that of the hosts in the order of the network's
// backend, which is the same on every rank and in every run. With two hosts it is (host 0) + (host 1).
//
// Bytes that a host sends in an all_reduce of N bytes over H hosts: 2 (H-1)/H N, where a ring over all ranks
// in the order of the hosts sends about 2 (R-1)/R N per host with R ranks. Other orders of ranks send more.

// All ranks make the same calls in the same order, from one thread at a time.
class HostCollectives {
 public:
  // `lane`: of ranks below layout.lanes().
  HostCollectives(HostLayout layout, ProcessGroup host, std::optional<ProcessGroup> lane)
      : layout_(std::move(layout)), host_(std::move(host)), lane_(std::move(lane)) {}

  // Whether run() can make the call. The others have nothing to gain from shared memory.
  static bool can_run(const comm::Call& call);
  // Returns when the results are available, or throws.
  void run(const comm::Call& call) const;

 private:
  using Tensor = at::Tensor;
  using Where = std::source_location;

  void all_reduce(const Tensor& row, ReduceOp op, Where where) const;
  void reduce_through_leader(const Tensor& row, ReduceOp op, Where where) const;
  void reduce_in_lanes(const Tensor& row, ReduceOp op, Where where) const;
  void broadcast(const Tensor& row, int src, Where where) const;
  void reduce(const Tensor& row, int dst, ReduceOp op, Where where) const;
  std::vector<Tensor> all_gather(const Tensor& input, Where where) const;
  void barrier(Where where) const;

  bool is_leader() const { return layout_.local_rank() == 0; }
  std::vector<Tensor> shares_of(const Tensor& row) const;

  HostLayout layout_;
  ProcessGroup host_;
  std::optional<ProcessGroup> lane_;
};

}  // namespace lockstep::backends
