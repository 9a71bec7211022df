// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "rendezvous/placement.h"
#include "rendezvous/slurm_lists.h"
#include "rendezvous/variables.h"

namespace lockstep::rendezvous {
namespace {

// Below the ports that kernels hand out by themselves, above the well-known ones.
constexpr std::int64_t kFirstPort = 15000;
constexpr std::int64_t kPorts = 15000;

std::optional<std::string> first_of(const Env& env, std::initializer_list<const char*> names) {
  for (const auto* name : names) {
    if (auto value = env.get(name)) return value;
  }
  return std::nullopt;
}

std::vector<std::string> node_list(const Env& env, const Variables& own) {
  const auto list = first_of(env, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!list) {
    throw RendezvousError(
        fmt::format("SLURM's environment is incomplete: seen {}; missing SLURM_JOB_NODELIST", own.seen()));
  }
  return expand_node_list(*list);
}

// Of a job or step: 32 bits without a sign. 0 when it is not there.
std::int64_t id_in(const Env& env, const char* name) {
  try {
    const auto id = env.get_int(name).value_or(0);
    if (id >= 0) return id;
    throw RendezvousError(fmt::format("environment variable {}={} is negative", name, id));
  } catch (const ArgumentError& error) {
    throw RendezvousError(error.what());
  }
}

// Two steps of one job may run at the same time, so the step counts too.
int port_of_job(const Env& env) {
  const auto job = first_of(env, {"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!job)
    throw RendezvousError("SLURM's environment is incomplete: SLURM_JOB_ID is missing; set MASTER_PORT");
  const auto id = id_in(env, env.has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID");
  const auto step = id_in(env, "SLURM_STEP_ID");
  return static_cast<int>(kFirstPort + (id * 7 + step) % kPorts);
}

std::optional<int> local_size(const Env& env, std::size_t nodes, int tasks) {
  if (nodes == 1) return tasks;
  const auto list = first_of(env, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto node = Variables(env, "SLURM's environment", {}).optional_number("SLURM_NODEID");
  if (!list || !node) return std::nullopt;
  const auto counts = expand_tasks_per_node(*list);
  if (*node >= static_cast<int>(counts.size())) {
    throw RendezvousError(fmt::format(
        "SLURM's environment contradicts itself: SLURM_NODEID={} but tasks per node of {}", *node, *list));
  }
  return counts[static_cast<std::size_t>(*node)];
}

// The script that sbatch runs has the numbers of a first task and is none; programs that it starts without
// srun, or with mpirun, inherit them. What srun starts has the number of a step.
bool is_batch_script(const Env& env) {
  return env.get("ENVIRONMENT") == "BATCH" && !env.has("SLURM_STEP_ID") && !env.has("SLURM_STEPID");
}

}  // namespace

std::optional<Placement> from_slurm(const Env& env) {
  const Variables own(env, "SLURM's environment", {"SLURM_PROCID", "SLURM_NTASKS"});
  // An allocation without srun sets SLURM_NTASKS alone: that is one plain process.
  if (!env.has("SLURM_PROCID") || is_batch_script(env)) return std::nullopt;
  own.require_all();
  const auto nodes = node_list(env, own);
  Placement placement{.rank = own.number("SLURM_PROCID"),
                      .world_size = own.number("SLURM_NTASKS"),
                      .local_rank = own.optional_number("SLURM_LOCALID"),
                      .source = "SLURM's environment"};
  placement.local_world_size = local_size(env, nodes.size(), placement.world_size);
  placement.master_addr = env.get("MASTER_ADDR").value_or(nodes.size() == 1 ? "127.0.0.1" : nodes.front());
  const auto port = own.optional_number("MASTER_PORT");
  placement.master_port = port ? checked_port(*port, "MASTER_PORT") : port_of_job(env);
  return placement;
}

}  // namespace lockstep::rendezvous
