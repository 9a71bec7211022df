// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/rank_info.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/slurm.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

// In an allocation, mpirun and mpiexec start a daemon per node with srun, and their ranks inherit the
// daemon's SLURM variables. srun itself does not set these two.
bool started_by_mpirun(const Env& env) {
  return env.has("OMPI_COMM_WORLD_RANK") || env.has("MPI_LOCALRANKID");
}

// The pods of an indexed Job of Kubernetes have the same manifest, and each has its index in a variable.
std::string name_of_rank(const Env& env) {
  const bool is_pod = !env.has("RANK") && env.has("WORLD_SIZE") && env.has("JOB_COMPLETION_INDEX");
  return is_pod ? "JOB_COMPLETION_INDEX" : "RANK";
}

}  // namespace

std::optional<RankInfo> from_launcher(const Env& env) {
  const auto rank = name_of_rank(env);
  const Variables own(env, "the launcher's environment", {rank, "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                      {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"});
  if (!own.any()) return std::nullopt;
  own.require_all();
  return RankInfo{.rank = own.number(rank),
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
    throw_error<RendezvousError>("{} contradicts itself: {}", p.source, error);
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
    throw_error<RendezvousError>(
        "{} spans several hosts, and MPI does not provide the address of rank 0: missing {}{}{}. Export them "
        "to all ranks (Open MPI: mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=<free port>)",
        rank_info.source, address ? "" : "MASTER_ADDR", !address && !port ? ", " : "",
        port ? "" : "MASTER_PORT");
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

namespace {

std::optional<int> local_size(const Env& env, const Variables& own, std::size_t nodes, int tasks) {
  if (nodes == 1) return tasks;
  const auto counts = slurm_step_tasks_per_node(env);
  const auto node = own.optional_number("SLURM_NODEID");
  if (counts.empty() || !node) return std::nullopt;
  if (*node >= static_cast<int>(counts.size())) {
    throw_error<RendezvousError>(
        "SLURM's environment contradicts itself: SLURM_NODEID={}, but tasks on {} node{} only", *node,
        counts.size(), counts.size() == 1 ? "" : "s");
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

namespace {

int to_int(std::int64_t value, const std::string& name) {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw_error<RendezvousError>("environment variable {}={} is not a count of ranks", name, value);
  }
  return static_cast<int>(value);
}

}  // namespace

Variables::Variables(const Env& env, std::string source, std::vector<std::string> required,
                     std::vector<std::string> optional)
    : env_(env), source_(std::move(source)), required_(std::move(required)), optional_(std::move(optional)) {}

bool Variables::any() const {
  return std::ranges::any_of(required_, [&](const auto& name) { return env_.has(name); }) ||
         std::ranges::any_of(optional_, [&](const auto& name) { return env_.has(name); });
}

std::string Variables::seen() const {
  std::vector<std::string> texts;
  for (const auto* names : {&required_, &optional_}) {
    for (const auto& name : *names) {
      if (const auto value = env_.get(name)) texts.push_back(name + "=" + *value);
    }
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

void Variables::require_all() const {
  std::vector<std::string> missing;
  for (const auto& name : required_) {
    if (!env_.has(name)) missing.push_back(name);
  }
  if (missing.empty()) return;
  throw_error<RendezvousError>(
      "{} is incomplete: seen {}; missing {}. Set all of them, or unset them all to "
      "run as one process; `lockstep run` sets them for you",
      source_, seen(), fmt::join(missing, ", "));
}

int Variables::number(const std::string& name) const {
  if (const auto value = optional_number(name)) return *value;
  throw_error<RendezvousError>("{}: {} is missing; seen {}", source_, name, seen());
}

std::optional<int> Variables::optional_number(const std::string& name) const {
  try {
    const auto value = env_.get_int(name);
    return value ? std::optional(to_int(*value, name)) : std::nullopt;
  } catch (const ArgumentError& error) {
    throw RendezvousError(error.what());
  }
}

int checked_port(std::int64_t port, const std::string& name) {
  if (port >= 1 && port <= 65535) return static_cast<int>(port);
  throw_error<RendezvousError>("{}={} is not a TCP port; 1 to 65535 are", name, port);
}

namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  InitMethod parse() {
    InitMethod method;
    if (text_.empty()) return method;
    const auto query = text_.find('?');
    if (query != std::string::npos) read_query(text_.substr(query + 1), method);
    const std::string main = text_.substr(0, query);
    if (main == "env://") {
      method.kind = InitMethod::Kind::env;
    } else if (main.starts_with("tcp://")) {
      read_tcp(main.substr(6), method);
    } else if (main.starts_with("file://")) {
      read_file(main.substr(7), method);
    } else {
      refuse("it must start with env://, tcp:// or file://");
    }
    return method;
  }

 private:
  [[noreturn]] void refuse(const std::string& error) const {
    throw_error<ArgumentError>("init_method \"{}\": {}", text_, error);
  }

  int number(const std::string& digits, const std::string& name) const {
    const auto value = parse_number<int>(digits);
    if (!value || *value < 0) refuse(fmt::format("{} \"{}\" is not a number", name, digits));
    return *value;
  }

  void read_tcp(const std::string& address, InitMethod& method) const {
    const auto colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0)
      refuse("a host and a port are needed, as in tcp://10.0.0.1:29500");
    method.kind = InitMethod::Kind::tcp;
    method.host = address.substr(0, colon);
    if (method.host.starts_with('[') && method.host.ends_with(']')) {
      method.host = method.host.substr(1, method.host.size() - 2);
    }
    method.port = number(address.substr(colon + 1), "port");
    if (method.port < 1 || method.port > 65535) refuse("the port must be 1 to 65535");
  }

  void read_file(const std::string& path, InitMethod& method) const {
    // PyTorch takes the first part of such a path for a host and drops it.
    if (!path.starts_with('/')) {
      refuse(fmt::format("the path must be absolute: file://{}", std::filesystem::absolute(path).string()));
    }
    if (path.ends_with('/')) refuse("the path must name a file, not a folder");
    method.kind = InitMethod::Kind::file;
    method.path = path;
  }

  void read_query(const std::string& query, InitMethod& method) const {
    for (const auto& pair : split(query, '&')) {
      const auto equals = pair.find('=');
      const std::string name = pair.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
      if (name == "rank") {
        method.rank = number(value, name);
      } else if (name == "world_size") {
        method.world_size = number(value, name);
      } else {
        refuse(fmt::format("\"{}\" is not a parameter; rank and world_size are", name));
      }
    }
  }

  const std::string& text_;
};

}  // namespace

InitMethod parse_init_method(const std::string& text) { return Parser(text).parse(); }

}  // namespace lockstep::rendezvous
