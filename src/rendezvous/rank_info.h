// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <lockstep/base/env.h>
#include <lockstep/rendezvous/init.h>

namespace lockstep::rendezvous {

// This process's numbers in its run, and the address of rank 0.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank = std::nullopt;
  std::optional<int> local_world_size = std::nullopt;
  std::string master_addr = {};
  int master_port = 0;
  std::string source = {};  // for messages: "the launcher's environment", "SLURM", ...

  bool one_host() const { return world_size == 1 || local_world_size == world_size; }
};

// Each returns nullopt if its launcher has not started this process, and throws RendezvousError if the
// variables are incomplete or contradict each other.
std::optional<RankInfo> from_launcher(const Env& env);
std::optional<RankInfo> from_slurm(const Env& env);
std::optional<RankInfo> from_mpi(const Env& env);

// The first of the three that has a value; nullopt for a plain process.
std::optional<RankInfo> from_environment(const Env& env);

// Throws RendezvousError if the numbers contradict each other.
void check(const RankInfo& rank_info);

}  // namespace lockstep::rendezvous
