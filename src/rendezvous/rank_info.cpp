// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/rank_info.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "rendezvous/variables.h"

namespace lockstep::rendezvous {
namespace {

// In an allocation, mpirun and mpiexec start a daemon per node with srun, and their ranks inherit the
// daemon's SLURM variables. srun itself does not set these two.
bool started_by_mpirun(const Env& env) {
  return env.has("OMPI_COMM_WORLD_RANK") || env.has("MPI_LOCALRANKID");
}

}  // namespace

std::optional<RankInfo> from_launcher(const Env& env) {
  const Variables own(env, "the launcher's environment", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                      {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"});
  if (!own.any()) return std::nullopt;
  own.require_all();
  return RankInfo{.rank = own.number("RANK"),
                  .world_size = own.number("WORLD_SIZE"),
                  .local_rank = own.optional_number("LOCAL_RANK"),
                  .local_world_size = own.optional_number("LOCAL_WORLD_SIZE"),
                  .master_addr = *env.get("MASTER_ADDR"),
                  .master_port = checked_port(own.number("MASTER_PORT"), "MASTER_PORT"),
                  .source = "the launcher's environment"};
}

std::optional<RankInfo> from_environment(const Env& env) {
  // MASTER_ADDR and MASTER_PORT alone do not identify a launcher: SLURM and MPI use them as well.
  const Variables ranks(env, "", {"RANK", "WORLD_SIZE"}, {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"});
  if (!ranks.any()) {
    auto found = started_by_mpirun(env) ? from_mpi(env) : from_slurm(env);
    if (!found) found = from_mpi(env);
    if (found) return found;
  }
  return from_launcher(env);
}

void check(const RankInfo& rank_info) {
  const auto& p = rank_info;
  const auto refuse = [&](const std::string& error) {
    throw RendezvousError(fmt::format("{} contradicts itself: {}", p.source, error));
  };
  if (p.world_size < 1) refuse(fmt::format("a world size of {}", p.world_size));
  if (p.rank < 0 || p.rank >= p.world_size) {
    refuse(fmt::format("rank {} in a world of {} ranks (0 to {})", p.rank, p.world_size, p.world_size - 1));
  }
  if (p.local_world_size && *p.local_world_size > p.world_size) {
    refuse(fmt::format("a local world size of {} in a world of {}", *p.local_world_size, p.world_size));
  }
  if (p.local_world_size && *p.local_world_size < 1) refuse("a local world size of 0");
  if (p.local_rank && *p.local_rank >= p.local_world_size.value_or(p.world_size)) {
    refuse(fmt::format("local rank {} among {} ranks on this host", *p.local_rank,
                       p.local_world_size.value_or(p.world_size)));
  }
}

}  // namespace lockstep::rendezvous
