// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/placement.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "rendezvous/variables.h"

namespace lockstep::rendezvous {
namespace {

// In an allocation mpirun and mpiexec have srun start a daemon on each node, and their ranks inherit the
// daemon's place among those. srun itself sets neither of these.
bool started_by_mpirun(const Env& env) {
  return env.has("OMPI_COMM_WORLD_RANK") || env.has("MPI_LOCALRANKID");
}

}  // namespace

std::optional<Placement> from_launcher(const Env& env) {
  const Variables own(env, "the launcher's environment", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                      {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"});
  if (!own.any()) return std::nullopt;
  own.require_all();
  return Placement{.rank = own.number("RANK"),
                   .world_size = own.number("WORLD_SIZE"),
                   .local_rank = own.optional_number("LOCAL_RANK"),
                   .local_world_size = own.optional_number("LOCAL_WORLD_SIZE"),
                   .master_addr = *env.get("MASTER_ADDR"),
                   .master_port = checked_port(own.number("MASTER_PORT"), "MASTER_PORT"),
                   .source = "the launcher's environment"};
}

std::optional<Placement> from_environment(const Env& env) {
  // MASTER_ADDR and MASTER_PORT alone may be there to help SLURM or MPI find rank 0.
  const Variables ranks(env, "", {"RANK", "WORLD_SIZE"}, {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"});
  if (!ranks.any()) {
    auto found = started_by_mpirun(env) ? from_mpi(env) : from_slurm(env);
    if (!found) found = from_mpi(env);
    if (found) return found;
  }
  return from_launcher(env);
}

void check(const Placement& placement) {
  const auto& p = placement;
  const auto refuse = [&](const std::string& complaint) {
    throw RendezvousError(fmt::format("{} contradicts itself: {}", p.source, complaint));
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
