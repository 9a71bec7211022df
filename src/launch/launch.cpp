// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <optional>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/base/log.h>
#include <lockstep/base/reserved_port.h>
#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/environment.h>
#include <lockstep/launch/guard.h>
#include <lockstep/launch/launch.h>
#include <lockstep/launch/program.h>
#include <lockstep/launch/supervisor.h>

namespace lockstep::launch {
namespace {

// Where one of them is closed, the next file opened would become it.
void open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= 2) fd = ::open("/dev/null", O_RDWR);
  if (fd > 2) UniqueFd{fd};
}

// Held for the whole launch, so that nobody else is given it before rank 0 listens there. Only node 0 needs
// it.
std::optional<ReservedPort> hold_port(const LaunchOptions& options) {
  if (options.node_rank != 0) return std::nullopt;
  if (!options.master_port) return ReservedPort();
  try {
    return ReservedPort(*options.master_port);
  } catch (const LaunchError& error) {
    throw LaunchError(fmt::format("master-port: {}; choose another{}", error.what(),
                                  options.nnodes == 1 ? ", or leave it out to get a free one" : ""));
  }
}

Resources resources_for(const LaunchOptions& options, const std::optional<ReservedPort>& port) {
  const Resources resources{.master_port = port ? port->port() : options.master_port.value(),
                            .cores = usable_cores()};
  if (options.nproc_per_node > resources.cores) {
    log(LogLevel::warning,
        fmt::format("{} ranks share {} core{}: expect them to wait for each other", options.nproc_per_node,
                    resources.cores, resources.cores == 1 ? "" : "s"));
  }
  return resources;
}

SupervisorOptions supervisor_options(const LaunchOptions& options, std::string file,
                                     const Resources& resources) {
  SupervisorOptions supervisor{.file = std::move(file),
                               .arguments = options.command,
                               .mark_lines = options.mark_lines,
                               .grace_period = options.grace_period};
  for (int local_rank = 0; local_rank < options.nproc_per_node; ++local_rank) {
    supervisor.ranks.push_back({.rank = global_rank(options, local_rank),
                                .environment = rank_environment(options, resources, local_rank, Env())});
  }
  return supervisor;
}

}  // namespace

int launch(const LaunchOptions& options) {
  validate(options);
  open_standard_streams();
  std::string file = find_program(options.command.front(), Env());
  const auto port = hold_port(options);
  const auto supervisor = supervisor_options(options, std::move(file), resources_for(options, port));
  return run_guarded([&](int launcher) {
    try {
      return supervise(supervisor, launcher);
    } catch (const ProgramError& error) {
      log(LogLevel::error, error.what());
      return error.exit_code();
    }
  });
}

}  // namespace lockstep::launch
