// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/base/env.h>

namespace lockstep::launch {

// The nodes of a run whose launchers are the tasks of a SLURM step, one per node.
struct SlurmNodes {
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr{};  // the first node's name
  std::uint16_t port = 0;     // of the coordinator; the same on all nodes
};

// The nodes of "srun --ntasks-per-node=1 lockstep run ...". nullopt if the run has this node only: without
// SLURM, in the shell of sbatch or salloc, in a step with one node, and below a rank of another launch.
// Throws ArgumentError if the step has several tasks per node, because each would start all ranks of the
// node, and RendezvousError if SLURM's variables are incomplete.
std::optional<SlurmNodes> slurm_nodes(const Env& env);

}  // namespace lockstep::launch
