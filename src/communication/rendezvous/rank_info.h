// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/env.h"

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
// mpirun and mpiexec; needs no MPI library.
std::optional<RankInfo> from_mpi(const Env& env);

// The first of the three that has a value; nullopt for a plain process.
std::optional<RankInfo> from_environment(const Env& env);

// Throws RendezvousError if the numbers contradict each other.
void check(const RankInfo& rank_info);

// A parsed InitOptions::init_method.
struct InitMethod {
  enum class Kind { none, env, tcp, file };
  Kind kind = Kind::none;
  std::string host = {};                         // tcp
  int port = 0;                                  // tcp
  std::string path = {};                         // file
  std::optional<int> rank = std::nullopt;        // from the query
  std::optional<int> world_size = std::nullopt;  // from the query
};

// Throws ArgumentError, which quotes the method.
InitMethod parse_init_method(const std::string& text);

// The environment variables of one launcher.
class Variables {
 public:
  // If one variable of `required` is set, all must be; `optional` ones are only listed in messages.
  Variables(const Env& env, std::string source, std::vector<std::string> required,
            std::vector<std::string> optional = {});

  bool any() const;
  // Throws RendezvousError listing the variables that are set, with values, and those that are missing.
  void require_all() const;
  // A required number that fits an int.
  int number(const std::string& name) const;
  std::optional<int> optional_number(const std::string& name) const;
  // "RANK=1, WORLD_SIZE=2"
  std::string seen() const;

 private:
  const Env& env_;
  std::string source_;
  std::vector<std::string> required_;
  std::vector<std::string> optional_;
};

// Throws RendezvousError unless the port is in 1 .. 65535.
int checked_port(std::int64_t port, const std::string& name);

}  // namespace lockstep::rendezvous
