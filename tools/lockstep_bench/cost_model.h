// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::bench {

// Note [Cost model]
//
// The time of an all-reduce of n bytes between H hosts is alpha M + beta W + gamma C:
//
//   M  messages that follow one another
//   W  bytes that a host sends
//   C  bytes that ranks of a host exchange while the network waits
//
//                                        M           W              C
//   hierarchical up to 32 KiB        2 (H-1)    2 (H-1)/H n         n
//   hierarchical above, k chunks   k 2 (H-1)    2 (H-1)/H n   n, at most a chunk
//   gloo over R ranks                2    2 (R-1)/R n         -
//
// The network reduces one chunk while the host reduces the next one, so only the first reduction and the last
// gathering on the host add to the time. Gloo's flat ring has its ranks in the order of the hosts.

// Hosts with ranks, as many on each.
struct Cluster {
  int hosts = 1;
  int ranks = 1;  // of all hosts
};

using Terms = std::array<double, 3>;  // M, W, C

// Terms of an all-reduce of `bytes`. Throws ArgumentError unless `backend` is "hierarchical" or "gloo".
Terms all_reduce_terms(const std::string& backend, std::size_t bytes, const Cluster& cluster);

struct CostModel {
  double alpha = 0;  // seconds a message
  double beta = 0;   // seconds a byte over the network
  double gamma = 0;  // seconds a byte on the host
  double seconds(const Terms& terms) const;
};

struct CostSample {
  Terms terms{};
  double seconds = 0;  // above 0
};

// The model with the least sum of squared relative errors. No parameter is negative; one that the samples do
// not determine is 0.
CostModel fit_cost_model(const std::vector<CostSample>& samples);

}  // namespace lockstep::bench
