// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <lockstep/base/env.h>
#include <lockstep/rendezvous/init.h>

namespace lockstep::rendezvous {

// Who this process is in its run, and where rank 0 listens. Filled by one of the sources below.
struct Placement {
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank = std::nullopt;
  std::optional<int> local_world_size = std::nullopt;
  std::string master_addr = {};
  int master_port = 0;
  std::string source = {};  // for messages: "the launcher's environment", "SLURM", ...

  bool one_host() const { return world_size == 1 || local_world_size == world_size; }
};

// Each returns nullopt when nothing speaks for its launcher, and throws RendezvousError when only a part of
// what it needs is there or it contradicts itself.
std::optional<Placement> from_launcher(const Env& env);
std::optional<Placement> from_slurm(const Env& env);
std::optional<Placement> from_mpi(const Env& env);

// The first of the three that speaks; nullopt for a plain process.
std::optional<Placement> from_environment(const Env& env);

// Throws RendezvousError unless the numbers agree with each other.
void check(const Placement& placement);

}  // namespace lockstep::rendezvous
