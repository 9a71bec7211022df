// SPDX-License-Identifier: BSD-3-Clause
#include "launch/slurm_allocation.h"

#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/slurm.h"

namespace lockstep::launch {
namespace {

std::size_t step_number(const Env& env, const char* name) {
  const auto value = env.get_int(name);
  if (value && *value >= 0) return static_cast<std::size_t>(*value);
  throw RendezvousError(
      fmt::format("SLURM's environment is incomplete: {} is {}", name, value ? "negative" : "missing"));
}

std::size_t step_tasks(const Env& env) {
  return step_number(env, env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
}

void check_one_task_a_node(std::size_t tasks, std::size_t nodes) {
  if (tasks <= nodes) return;
  throw ArgumentError(fmt::format(
      "srun starts lockstep run {} times on {} node{}, and each would start all ranks of its node: use "
      "srun --nodes={} --ntasks={} --ntasks-per-node=1, and set --nproc-per-node for lockstep run",
      tasks, nodes, nodes == 1 ? "" : "s", nodes, nodes));
}

}  // namespace

std::optional<SlurmNodes> slurm_nodes(const Env& env) {
  const bool below_a_rank = env.has("RANK") && env.has("WORLD_SIZE");
  if (below_a_rank || !in_slurm_step(env)) return std::nullopt;
  const auto nodes = slurm_step_nodes(env);
  check_one_task_a_node(step_tasks(env), nodes.size());
  if (nodes.size() == 1) return std::nullopt;
  const auto node = step_number(env, "SLURM_NODEID");
  if (node >= nodes.size()) {
    throw RendezvousError(fmt::format("SLURM's environment contradicts itself: SLURM_NODEID={} of {} nodes",
                                      node, nodes.size()));
  }
  return SlurmNodes{.nnodes = static_cast<int>(nodes.size()),
                    .node_rank = static_cast<int>(node),
                    .master_addr = nodes.front(),
                    .port = slurm_step_port(env, SlurmPort::launchers)};
}

}  // namespace lockstep::launch
