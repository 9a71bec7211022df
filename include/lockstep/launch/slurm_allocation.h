// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/base/env.h>

namespace lockstep::launch {

/// The nodes of a launch whose launchers are the tasks of a SLURM step, one on each node.
struct SlurmNodes {
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr{};  ///< the first node's name
  std::uint16_t port = 0;     ///< where the launchers meet; the same on all nodes
};

/// The nodes, as in "srun --ntasks-per-node=1 lockstep run ...". nullopt where this launch is one of this
/// node alone: without SLURM, in the shell of sbatch or salloc, in a step with one node, and below a rank of
/// another launch. Throws ArgumentError when the step has several tasks on a node, each of which would start
/// all of that node's ranks, and RendezvousError when SLURM's variables are incomplete.
std::optional<SlurmNodes> slurm_nodes(const Env& env);

}  // namespace lockstep::launch
