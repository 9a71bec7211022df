// SPDX-License-Identifier: BSD-3-Clause
// Ranks started by mpirun or mpiexec, from environment variables; needs no MPI library.
#include <functional>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "rendezvous/rank_info.h"
#include "rendezvous/variables.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::size_t kFirstPort = 15000;
constexpr std::size_t kPorts = 15000;

// The same for all ranks of one mpirun on one host: from its job id if it sets one, else from its pid.
int port_of_job(const Env& env) {
  std::string job = fmt::format("parent {}", ::getppid());
  for (const auto* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const auto value = env.get(name)) job = *value;
  }
  return static_cast<int>(kFirstPort + std::hash<std::string>{}(job) % kPorts);
}

RankInfo with_master(RankInfo rank_info, const Env& env) {
  const auto port = Variables(env, rank_info.source, {}).optional_number("MASTER_PORT");
  if (rank_info.one_host()) {
    rank_info.master_addr = env.get("MASTER_ADDR").value_or("127.0.0.1");
    rank_info.master_port = port ? checked_port(*port, "MASTER_PORT") : port_of_job(env);
    return rank_info;
  }
  const auto address = env.get("MASTER_ADDR");
  if (!address || !port) {
    throw RendezvousError(
        fmt::format("{} spans several hosts, and MPI does not provide the address of rank 0: missing {}{}{}. "
                    "Export them to "
                    "all ranks (Open MPI: mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=<free port>)",
                    rank_info.source, address ? "" : "MASTER_ADDR", !address && !port ? ", " : "",
                    port ? "" : "MASTER_PORT"));
  }
  rank_info.master_addr = *address;
  rank_info.master_port = checked_port(*port, "MASTER_PORT");
  return rank_info;
}

struct Names {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

std::optional<RankInfo> from_names(const Env& env, const Names& names) {
  const Variables own(env, names.source, {names.rank, names.size}, {names.local_rank, names.local_size});
  if (!env.has(names.rank) && !env.has(names.size)) return std::nullopt;
  own.require_all();
  return with_master({.rank = own.number(names.rank),
                      .world_size = own.number(names.size),
                      .local_rank = own.optional_number(names.local_rank),
                      .local_world_size = own.optional_number(names.local_size),
                      .source = names.source},
                     env);
}

}  // namespace

std::optional<RankInfo> from_mpi(const Env& env) {
  if (auto found = from_names(env, {"Open MPI's environment", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})) {
    return found;
  }
  return from_names(env, {"PMI's environment", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
}

}  // namespace lockstep::rendezvous
