// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

// Note [Nodes that move]
//
// With OnLoss::oversubscribe a launcher that is left starts the ranks of a lost node on its own host. It starts a second
// launcher for them, the adopter, with its own command line and `--adopt`, which stands for an AdoptedNode. The adopter
// joins the run as the lost node: with its number of the node, its ranks and their threads. LOCKSTEP_HOST_ID makes a
// host of its own of it, so that hierarchical sums in the order of the first start.
//
// The adopter is a child of the launcher's first process (note [Guards]), not of the supervisor of the ranks, which ends
// every process below it when its ranks end. It dies with that process, and its ranks with it.
struct AdoptedNode {
  int node_rank = 0;
  std::string role{};
  std::string memory{};        // memory_identity() of the lost node
  std::vector<int> threads{};  // [local rank]
};

// The value of --adopt: all but `memory`.
std::string adopt_text(const AdoptedNode& node);
// Throws ArgumentError for what adopt_text() has not made.
AdoptedNode parse_adopted(const std::string& text);

}  // namespace lockstep::launch
