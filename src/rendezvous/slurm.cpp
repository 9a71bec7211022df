// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/slurm_step.h>

#include "rendezvous/placement.h"
#include "rendezvous/variables.h"

namespace lockstep::rendezvous {
namespace {

std::optional<int> local_size(const Env& env, const Variables& own, std::size_t nodes, int tasks) {
  if (nodes == 1) return tasks;
  const auto counts = slurm_step_tasks_per_node(env);
  const auto node = own.optional_number("SLURM_NODEID");
  if (counts.empty() || !node) return std::nullopt;
  if (*node >= static_cast<int>(counts.size())) {
    throw RendezvousError(
        fmt::format("SLURM's environment contradicts itself: SLURM_NODEID={}, but tasks on {} node{} only",
                    *node, counts.size(), counts.size() == 1 ? "" : "s"));
  }
  return counts[static_cast<std::size_t>(*node)];
}

}  // namespace

std::optional<Placement> from_slurm(const Env& env) {
  if (!in_slurm_step(env)) return std::nullopt;
  const Variables own(env, "SLURM's environment", {"SLURM_PROCID", "SLURM_NTASKS"});
  own.require_all();
  const auto nodes = slurm_step_nodes(env);
  // srun --preserve-env leaves SLURM_NTASKS at what the allocation has.
  const auto tasks = own.optional_number("SLURM_STEP_NUM_TASKS").value_or(own.number("SLURM_NTASKS"));
  Placement placement{.rank = own.number("SLURM_PROCID"),
                      .world_size = tasks,
                      .local_rank = own.optional_number("SLURM_LOCALID"),
                      .source = "SLURM's environment"};
  placement.local_world_size = local_size(env, own, nodes.size(), placement.world_size);
  placement.master_addr = env.get("MASTER_ADDR").value_or(nodes.size() == 1 ? "127.0.0.1" : nodes.front());
  const auto port = own.optional_number("MASTER_PORT");
  placement.master_port = port ? checked_port(*port, "MASTER_PORT") : slurm_step_port(env, SlurmPort::ranks);
  return placement;
}

}  // namespace lockstep::rendezvous
