// SPDX-License-Identifier: BSD-3-Clause
#include "launch/launch.h"

#include <algorithm>
#include <fcntl.h>
#include <memory>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/sockets.h"
#include "base/unique_fd.h"
#include "launch/coordinator_server.h"
#include "launch/environment.h"
#include "launch/guard.h"
#include "launch/worker_group.h"

namespace lockstep::launch {
namespace {

// A closed standard stream would be replaced by the next file that is opened.
void open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= 2) fd = ::open("/dev/null", O_RDWR);
  if (fd > 2) UniqueFd{fd};
}

void warn_of_too_many_ranks(const LaunchOptions& options) {
  const int cores = usable_cores();
  if (options.nproc_per_node <= cores) return;
  log(LogLevel::warning, fmt::format("{} ranks share {} core{}: they will wait for each other",
                                     options.nproc_per_node, cores, cores == 1 ? "" : "s"));
}

// Finds errors that would otherwise appear in each rank, or later.
void check_ahead(const LaunchOptions& options) {
  allocator_environment(options.memory_allocator, Env());
  for (int local_rank = 0; local_rank < options.nproc_per_node; ++local_rank) {
    rank_environment(options, {}, local_rank, 1, Env());
  }
  if (!options.nodes && options.master_port) (void)reserve_port(options);
}

// bind() succeeds only for an address of this machine.
bool can_bind(const SocketAddress& address) {
  const UniqueFd socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return socket && ::bind(socket.get(), address.with_port(0).get(), address.length) == 0;
}

// A pod of Kubernetes may start before its own name can be resolved.
bool is_this_host(const std::string& name) {
  return name == host_name() || name.starts_with(host_name() + ".") ||
         std::ranges::any_of(resolve_now(name).addresses, can_bind);
}

// The first launcher on the endpoint's host gets the port; others on that host join it.
bool hosts_coordinator(const NodesOptions& nodes) {
  if (nodes.is_host) return *nodes.is_host;
  if (nodes.node_rank) return *nodes.node_rank == 0;
  return is_this_host(nodes.endpoint.host) && bound_socket(nodes.endpoint.port);
}

std::unique_ptr<CoordinatorServer> make_server(const LaunchOptions& options) {
  if (!options.nodes || !hosts_coordinator(*options.nodes)) return nullptr;
  try {
    return std::make_unique<CoordinatorServer>(options, *options.nodes);
  } catch (const LaunchError&) {
    // Another launcher on this host has got the port.
    if (!options.nodes->node_rank && !options.nodes->is_host) return nullptr;
    throw;
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  validate(options);
  open_standard_streams();
  const std::string file = find_program(options.command.front(), Env());
  check_ahead(options);
  warn_of_too_many_ranks(options);
  const auto server = make_server(options);
  const auto body = [&](int parent) {
    if (server) server->close();
    try {
      return supervise(options, file, server != nullptr, parent);
    } catch (const ProgramError& error) {
      log(LogLevel::error, error.what());
      return error.exit_code();
    }
  };
  GuardOptions guard{.stop_signals = options.stop_signals};
  if (server) guard.beside = [&](int stop) { server->serve(stop); };
  const auto exit = run_guarded(body, guard);
  if (exit.signal != 0) log(LogLevel::error, describe(exit));
  return exit.code;
}

}  // namespace lockstep::launch
