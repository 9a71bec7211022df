// SPDX-License-Identifier: BSD-3-Clause
#include "base/launched_rank.h"

#include "base/process_state.h"
#include "base/slurm.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

// One process, too, is a rank by its variables.
std::optional<LaunchedRank> rank_in(const Env& env, const char* rank_name, const char* size_name) {
  const auto rank_text = env.get(rank_name);
  const auto size_text = rank_text ? env.get(size_name) : std::nullopt;
  if (!size_text) return std::nullopt;
  const auto rank = parse_number<int>(*rank_text);
  const auto size = parse_number<int>(*size_text);
  if (!rank || !size || *rank < 0 || *rank >= *size) return LaunchedRank{};
  return LaunchedRank{.rank = *rank,
                      .world_size = *size,
                      .variables = fmt::format("{}={} and {}={}", rank_name, *rank, size_name, *size)};
}

std::optional<LaunchedRank> rank_in_slurm(const Env& env) {
  try {
    if (!in_slurm_step(env)) return std::nullopt;
    auto found = rank_in(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    return found ? found : rank_in(env, "SLURM_PROCID", "SLURM_NTASKS");
  } catch (const RendezvousError&) {
    return std::nullopt;  // init() reports a malformed variable
  }
}

std::optional<LaunchedRank> rank_in_mpi(const Env& env) {
  auto found = rank_in(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  return found ? found : rank_in(env, "PMI_RANK", "PMI_SIZE");
}

}  // namespace

// In the order of init(); the first that is complete decides. Ranks of mpirun inherit the variables of the
// SLURM step of its daemons.
std::optional<LaunchedRank> launched_rank(const Env& env) {
  auto found = rank_in(env, "RANK", "WORLD_SIZE");
  if (!found && !env.has("RANK")) found = rank_in(env, "JOB_COMPLETION_INDEX", "WORLD_SIZE");
  if (!found && (env.has("OMPI_COMM_WORLD_RANK") || env.has("MPI_LOCALRANKID"))) found = rank_in_mpi(env);
  if (!found) found = rank_in_slurm(env);
  if (!found) found = rank_in_mpi(env);
  return found && found->world_size > 1 ? found : std::nullopt;
}

void require_init(const char* what) {
  if (has_had_world()) return;
  const auto launched = launched_rank();
  if (!launched) return;
  throw_error<ArgumentError>(
      "{}: the environment says that this process is {} ({}), but init() has not been called, so "
      "every rank would work alone, on all data; call lockstep::init() first and keep the context that it "
      "returns. To run as one process, unset these variables",
      what, numbered_rank(launched->rank, launched->world_size), launched->variables);
}

World shared_world(const char* what) {
  require_init(what);
  return current_world();
}

void require_same_world(const char* what, const World& made_in) {
  const auto now = current_world();
  if (now.size == 1 || (now.size == made_in.size && now.rank == made_in.rank)) return;
  throw_error<ArgumentError>(
      "{}: made as {}, but this process now is {}; make it anew after this run's "
      "init()",
      what, numbered_rank(made_in.rank, made_in.size), numbered_rank(now.rank, now.size));
}

}  // namespace lockstep
