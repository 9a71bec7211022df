// SPDX-License-Identifier: BSD-3-Clause
#include "base/slurm.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "rendezvous/rank_info.h"
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

std::optional<RankInfo> from_slurm(const Env& env) {
  if (!in_slurm_step(env)) return std::nullopt;
  const Variables own(env, "SLURM's environment", {"SLURM_PROCID", "SLURM_NTASKS"});
  own.require_all();
  const auto nodes = slurm_step_nodes(env);
  // With srun --preserve-env, SLURM_NTASKS is that of the allocation.
  const auto tasks = own.optional_number("SLURM_STEP_NUM_TASKS").value_or(own.number("SLURM_NTASKS"));
  RankInfo rank_info{.rank = own.number("SLURM_PROCID"),
                     .world_size = tasks,
                     .local_rank = own.optional_number("SLURM_LOCALID"),
                     .source = "SLURM's environment"};
  rank_info.local_world_size = local_size(env, own, nodes.size(), rank_info.world_size);
  rank_info.master_addr = env.get("MASTER_ADDR").value_or(nodes.size() == 1 ? "127.0.0.1" : nodes.front());
  const auto port = own.optional_number("MASTER_PORT");
  rank_info.master_port = port ? checked_port(*port, "MASTER_PORT") : slurm_step_port(env, SlurmPort::ranks);
  return rank_info;
}

}  // namespace lockstep::rendezvous
