// SPDX-License-Identifier: BSD-3-Clause
#include <initializer_list>
#include <optional>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/slurm_lists.h>
#include <lockstep/base/slurm_step.h>

namespace lockstep {
namespace {

using Names = std::initializer_list<const char*>;

// Above the well-known ports, below those that kernels hand out by themselves.
constexpr std::int64_t kFirstPort = 15000;
constexpr std::int64_t kPortsEach = 7500;

// From here on they are no steps of srun: the batch script, the shell of salloc (the site's choice
// LaunchParameters=use_interactive_step), ...
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

// SLURM's older versions have the shorter names.
constexpr Names kJobId{"SLURM_JOB_ID", "SLURM_JOBID"};
constexpr Names kStepId{"SLURM_STEP_ID", "SLURM_STEPID"};

std::optional<std::string> first_of(const Env& env, Names names) {
  for (const auto* name : names) {
    if (auto value = env.get(name)) return value;
  }
  return std::nullopt;
}

// 32 bits without a sign.
std::optional<std::int64_t> id_in(const Env& env, Names names) {
  for (const auto* name : names) {
    if (!env.has(name)) continue;
    try {
      const auto id = env.get_int(name);
      if (*id >= 0) return id;
      throw RendezvousError(fmt::format("environment variable {}={} is negative", name, *id));
    } catch (const ArgumentError& error) {
      throw RendezvousError(error.what());
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse_without(const char* name, const char* remedy = "") {
  throw RendezvousError(fmt::format("SLURM's environment is incomplete: {} is missing{}", name, remedy));
}

}  // namespace

bool in_slurm_step(const Env& env) {
  if (!env.has("SLURM_PROCID")) return false;
  // The script that sbatch runs has the number of a first task, and none of a step.
  const auto step = id_in(env, kStepId);
  return step ? *step < kFirstSpecialStep : env.get("ENVIRONMENT") != "BATCH";
}

std::vector<std::string> slurm_step_nodes(const Env& env) {
  const auto list = first_of(env, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!list) refuse_without("SLURM_JOB_NODELIST");
  return expand_node_list(*list);
}

std::vector<int> slurm_step_tasks_per_node(const Env& env) {
  const auto list = first_of(env, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  return list ? expand_tasks_per_node(*list) : std::vector<int>();
}

std::uint16_t slurm_step_port(const Env& env, SlurmPort who) {
  const auto job = id_in(env, kJobId);
  if (!job) refuse_without("SLURM_JOB_ID", "; set MASTER_PORT");
  const auto number = *job * 7 + id_in(env, kStepId).value_or(0);
  const auto first = who == SlurmPort::ranks ? kFirstPort : kFirstPort + kPortsEach;
  return static_cast<std::uint16_t>(first + number % kPortsEach);
}

}  // namespace lockstep
