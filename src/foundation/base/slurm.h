// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"

namespace lockstep {

// SLURM's variables for the tasks of a step, which srun starts. All functions but the first and
// the last REQUIRE in_slurm_step() and throw RendezvousError naming a variable that is missing or malformed.

// Whether this process is a task of a step or was started by one. The shells of sbatch and salloc are not,
// although they have most of the same variables.
bool in_slurm_step(const Env& env);

// The names of the step's nodes, in the order of SLURM_NODEID.
std::vector<std::string> slurm_step_nodes(const Env& env);

// The number of tasks on each of them; empty when unknown.
std::vector<int> slurm_step_tasks_per_node(const Env& env);

enum class SlurmPort { ranks, launchers };

// A TCP port that is the same in all tasks of a step, below the ephemeral ports. It is computed from the job
// and step ids, because several steps may run on a node at the same time.
std::uint16_t slurm_step_port(const Env& env, SlurmPort who);

// SLURM's compressed host list, e.g. "gpu[01-03,07],login1" or "rack[1-2]n[1-4]": gpu01, gpu02, ...
// Throws RendezvousError for a list that is not well formed.
std::vector<std::string> expand_node_list(const std::string& list);

// SLURM's tasks per node, e.g. "4(x2),3": 4, 4, 3. Throws RendezvousError for a list that is not well formed.
std::vector<int> expand_tasks_per_node(const std::string& list);

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

}  // namespace lockstep
