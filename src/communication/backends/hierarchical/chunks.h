// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "backends/hierarchical/hierarchical_call.h"
#include "backends/hierarchical/host_layout.h"
#include "backends/hierarchical/legs.h"

namespace lockstep::backends {

// Note [Chunks]
//
// A large all_reduce over two hosts with two ranks each. One chunk has a share for each lane:
//
//                     host 0                      host 1
//                     rank 0      rank 1          rank 2      rank 3
//     reduce_on_host  a0          b0              a1          b1          sums of the host, in rank order
//     lanes               a0 + a1 between ranks 0 and 2, b0 + b1 between ranks 1 and 3
//     gather_shares   a b         a b             a b         a b
//
// The lanes of one chunk run while the hosts reduce the next one and gather the one before:
//
//     host       reduce 0 | reduce 1 | gather 0 | reduce 2 | gather 1 | gather 2
//     network             [ lanes 0 ......... ] [ lanes 2 .........  ]
//                                    [ lanes 1 .........  ]
//
// So at most two chunks are on the network, and a chunk's shares are gathered only after its lanes have
// ended. Each chunk costs one message per step of the network's ring, hence the lower limit of 8 MiB, which
// grows with the hosts (chunk_bytes()). reduce_scatter() has the same order: sums_of_host() and exchange() of
// one chunk, then the sums that have arrived for the chunk before.

// Where the parts of a collective run.
struct HostAndLanes {
  HostLayout layout;
  Leg host;                // the ranks of this host
  std::vector<Leg> lanes;  // of this rank over the network, in ascending order
};

// `row` becomes its reduction over all ranks. `op`: not AVG.
void reduce_in_lanes(const HostAndLanes& group, const at::Tensor& row, ReduceOp op,
                     const HierarchicalCall& call);

// `output` becomes the reduction of the ranks' parts[rank of this one]. `op`: not AVG.
void reduce_scatter(const HostAndLanes& group, const at::Tensor& output, const std::vector<at::Tensor>& parts,
                    ReduceOp op, const HierarchicalCall& call);

}  // namespace lockstep::backends
