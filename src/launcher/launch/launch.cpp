// SPDX-License-Identifier: BSD-3-Clause
#include "launch/launch.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "launch/adopters.h"
#include "launch/coordinator_server.h"
#include "launch/environment.h"
#include "launch/launch_limits.h"
#include "launch/launch_view.h"
#include "launch/metrics_server.h"
#include "launch/supervisor.h"

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

// One table for a run: node 0's.
void show_limits(const LaunchOptions& options) {
  if (const auto text = grace_warning(options, Env()); !text.empty()) log(LogLevel::warning, text);
  if (options.shows_limits && (!options.nodes || options.nodes->node_rank.value_or(0) == 0))
    log(LogLevel::info, "time limits of the launcher:" + table_text(launch_limits(options)));
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

// 0, or the errno value that execve(2) would give.
int exec_error_of(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return errno;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

bool is_absent(int code) { return code == ENOENT || code == ENOTDIR; }

[[noreturn]] void refuse(const std::string& name, int code) {
  if (is_absent(code)) {
    throw ProgramError(
        fmt::format("program \"{}\" was not found: {}; name an existing file", name, errno_text(code)),
        ProgramError::kNotFound);
  }
  const char* advice = code == EISDIR ? "name a file in it"
                                      : "make it executable (chmod +x), or name its interpreter first, as in "
                                        "\"-- python3 train.py\"";
  throw ProgramError(fmt::format("program \"{}\" cannot be run: {}; {}", name, errno_text(code), advice),
                     ProgramError::kNotExecutable);
}

std::string search(const std::string& name, const std::string& folders) {
  int denied = 0;
  // The colon keeps an empty last element, which means the current folder.
  std::istringstream list(folders + ":");
  for (std::string folder; std::getline(list, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    const int code = exec_error_of(path);
    if (code == 0) return path;
    if (code == EACCES) denied = code;
  }
  if (denied != 0) refuse(name, denied);
  const char* advice = exec_error_of("./" + name) == 0 ? "; this folder has one: use \"./" : "";
  throw ProgramError(fmt::format("program \"{}\" was not found in any folder of PATH{}", name,
                                 *advice != '\0' ? advice + name + "\"" : ""),
                     ProgramError::kNotFound);
}

}  // namespace

std::string find_program(const std::string& name, const Env& env) {
  if (name.find('/') == std::string::npos) return search(name, env.get("PATH").value_or("/bin:/usr/bin"));
  if (const int code = exec_error_of(name); code != 0) refuse(name, code);
  return name;
}

ReservedPort reserve_port(const LaunchOptions& options) {
  if (options.nodes || !options.master_port) return {};
  try {
    return ReservedPort(*options.master_port);
  } catch (const LaunchError& error) {
    throw_error<LaunchError>("master-port: {}; choose another, or leave it out to get a free one",
                             error.what());
  }
}

int launch(const LaunchOptions& given, std::vector<GuardOptions::Companion> beside) {
  validate(given);
  require_stack();
  open_standard_streams();
  auto options = given;
  const std::string file = find_program(options.command.front(), Env());
  check_ahead(options);
  warn_of_too_many_ranks(options);
  show_limits(options);
  const auto server = make_server(options);
  const auto metrics = options.metrics ? std::make_unique<MetricsServer>(*options.metrics) : nullptr;
  const bool can_be_seen = options.nodes && options.snapshot;
  const auto view = can_be_seen ? std::make_unique<LaunchView>(options) : nullptr;
  if (view) options.looks = view->looks();
  const bool can_adopt = options.on_loss == OnLoss::oversubscribe && !options.adopted;
  const auto adopters = can_adopt ? std::make_unique<Adopters>(options) : nullptr;
  if (adopters) options.adoptions = adopters->orders();
  const auto body = [&](int parent) {
    if (view) view->close();
    if (adopters) adopters->close();
    if (server) server->close();
    if (metrics) metrics->close();
    try {
      return supervise(options, file, server != nullptr, parent);
    } catch (const ProgramError& error) {
      log(LogLevel::error, error.what());
      return error.exit_code();
    }
  };
  GuardOptions guard{.signals = forwarded_signals(options.stop_signals), .beside = std::move(beside)};
  if (server)
    guard.beside.push_back({"the coordinator of the nodes", [&](int stop) { server->serve(stop); }});
  if (metrics) guard.beside.push_back({"the metrics", [&](int stop) { metrics->serve(stop); }});
  if (view) guard.beside.push_back({"the view of the ranks", [&](int stop) { view->serve(stop); }});
  if (adopters)
    guard.beside.push_back(
        {"the launchers in the place of lost nodes", [&](int stop) { adopters->serve(stop); }});
  const auto exit = run_guarded(body, guard);
  if (exit.signal != 0) log(LogLevel::error, describe(exit));
  return exit.code;
}

}  // namespace lockstep::launch
