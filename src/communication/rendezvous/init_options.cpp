// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/init_options.h"

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "rendezvous/python_group.h"

namespace lockstep::rendezvous {
namespace {

void check_reconfigurable(const SessionOptions& options, const InitMethod& method) {
  const auto refuse = [](const std::string& what) {
    throw ArgumentError("InitOptions: enable_reconfigure cannot be combined with " + what);
  };
  if (options.with_python) refuse("with_python; give the C++ ranks a group of their own");
  if (method.kind == InitMethod::Kind::file) refuse("a file:// init_method, whose ranks wait for each other");
}

// The option takes precedence over the query, the query over the environment.
int pick(const std::optional<int>& option, const std::optional<int>& query, const Env& env,
         const char* option_name, const char* variable) {
  if (option) return *option;
  if (query) return *query;
  if (env.has(variable)) return Variables(env, "the environment", {variable}).number(variable);
  throw_error<RendezvousError>(
      "init_method needs InitOptions::{0}, \"?{0}=\" in the method, or {1} in the environment; none is set",
      option_name, variable);
}

RankInfo explicit_rank_info(const SessionOptions& options, const InitMethod& method) {
  const Variables numbers(options.env, "the environment", {});
  return {.rank = pick(options.rank, method.rank, options.env, "rank", "RANK"),
          .world_size = pick(options.world_size, method.world_size, options.env, "world_size", "WORLD_SIZE"),
          .local_rank = numbers.optional_number("LOCAL_RANK"),
          .local_world_size = numbers.optional_number("LOCAL_WORLD_SIZE"),
          .master_addr = method.host,
          .master_port = method.port,
          .source = "InitOptions"};
}

// Rank and size from the options or the query, the address of rank 0 from the environment.
RankInfo rank_info_with_numbers(const SessionOptions& options, const InitMethod& method) {
  const Variables master(options.env, "the launcher's environment", {"MASTER_ADDR", "MASTER_PORT"},
                         {"RANK", "WORLD_SIZE"});
  RankInfo rank_info = explicit_rank_info(options, method);
  if (!options.store && rank_info.world_size > 1) master.require_all();
  rank_info.master_addr = options.env.get("MASTER_ADDR").value_or("");
  if (master.optional_number("MASTER_PORT")) {
    rank_info.master_port = checked_port(master.number("MASTER_PORT"), "MASTER_PORT");
  }
  return rank_info;
}

RankInfo rank_info_of(const SessionOptions& options, const InitMethod& method) {
  using Kind = InitMethod::Kind;
  if (method.kind == Kind::tcp || method.kind == Kind::file) return explicit_rank_info(options, method);
  if (options.rank || options.world_size || method.rank || method.world_size) {
    return rank_info_with_numbers(options, method);
  }
  if (method.kind == Kind::env) {
    if (auto found = from_launcher(options.env)) return *found;
    throw RendezvousError(
        "init_method env:// needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
        "environment; none is set. `lockstep run` sets them");
  }
  if (auto found = from_environment(options.env)) return *found;
  log(LogLevel::info,
      "not distributed: one process (start it with `lockstep run --nproc-per-node N` for more)");
  return {.local_rank = 0, .local_world_size = 1, .source = "no launcher"};
}

}  // namespace

void check_options(const SessionOptions& options, const InitMethod& method) {
  if (options.store && method.kind != InitMethod::Kind::none) {
    throw ArgumentError("InitOptions: set store or init_method, not both");
  }
  if (options.rank.has_value() != options.world_size.has_value() && method.kind == InitMethod::Kind::none) {
    throw_error<ArgumentError>("InitOptions: {} is given but {} is not; set both or neither",
                               options.rank ? "rank" : "world_size", options.rank ? "world_size" : "rank");
  }
  if (options.store && !options.rank) {
    throw ArgumentError("InitOptions: store needs rank and world_size");
  }
  if (options.enable_reconfigure) check_reconfigurable(options, method);
}

void check_with_python(const SessionOptions& options, const backends::BackendSpec& backend,
                       const InitMethod& method) {
  const auto refuse = [](const std::string& what) {
    throw ArgumentError("InitOptions: with_python cannot be combined with " + what);
  };
  check_backend_with_python(backend, "InitOptions: with_python");
  const auto name = backend.name();
  if (method.kind == InitMethod::Kind::file) refuse("a file:// init_method; use env:// or tcp://");
  if (options.device && options.device->is_cpu() == (name == "nccl"))
    refuse(fmt::format("the backend {} and device {}", name, options.device->str()));
  if (checks_calls(options)) {
    refuse("check_calls or TORCH_DISTRIBUTED_DEBUG=DETAIL, for which PyTorch makes calls of its own");
  }
  if (options.env.get("TORCH_DIST_INIT_BARRIER") == "1")
    refuse("TORCH_DIST_INIT_BARRIER=1, for which PyTorch waits for C++ ranks in a barrier of its own");
}

RankInfo find_rank_info(const SessionOptions& options, const InitMethod& method) {
  auto found = rank_info_of(options, method);
  check(found);
  return found;
}

}  // namespace lockstep::rendezvous
