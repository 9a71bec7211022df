// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/base/env.h>

namespace lockstep {

// What SLURM tells the tasks of a step, that is, what srun starts. All but the first REQUIRE in_slurm_step()
// and throw RendezvousError, naming the variable, when it is missing or not understood.

/// Whether this process is a task of a step or was started by one. The shells of sbatch and salloc are none,
/// though they have most of the same variables.
bool in_slurm_step(const Env& env);

/// The names of the step's nodes, in the order of SLURM_NODEID.
std::vector<std::string> slurm_step_nodes(const Env& env);

/// The number of tasks on each of them; empty when SLURM does not tell.
std::vector<int> slurm_step_tasks_per_node(const Env& env);

/// Who meets at a port.
enum class SlurmPort { ranks, launchers };

/// A TCP port that is the same in all tasks of a step, and not one that kernels hand out by themselves. It
/// follows from the numbers of job and step, because several may run on a node at the same time.
std::uint16_t slurm_step_port(const Env& env, SlurmPort who);

}  // namespace lockstep
