// SPDX-License-Identifier: BSD-3-Clause
#include "run_command.h"

#include <charconv>
#include <cmath>
#include <random>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>

namespace lockstep::cli {
namespace {

int parse_nnodes(const std::string& text) {
  const auto colon = text.find(':');
  const std::string least = text.substr(0, colon);
  if (colon != std::string::npos && text.substr(colon + 1) != least) {
    throw ArgumentError(
        fmt::format("--nnodes {}: a range of nodes needs elastic launching, which this version does not "
                    "have yet; give one number",
                    text));
  }
  int value = 0;
  const auto [stop, code] = std::from_chars(least.data(), least.data() + least.size(), value);
  if (code != std::errc() || stop != least.data() + least.size() || value < 1) {
    throw ArgumentError(fmt::format("--nnodes {}: give a whole number above 0", text));
  }
  return value;
}

std::optional<std::uint16_t> checked_port(std::optional<int> port) {
  if (!port) return std::nullopt;
  if (*port < 1 || *port > 65535) {
    throw ArgumentError(fmt::format("--master-port {}: a port lies in 1 .. 65535", *port));
  }
  return static_cast<std::uint16_t>(*port);
}

std::chrono::milliseconds checked_grace(double seconds) {
  constexpr double most = 24 * 3600;
  if (!(seconds >= 0 && seconds <= most)) {
    throw ArgumentError(fmt::format("--grace-period {}: give seconds, from 0 to {}", seconds, most));
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

void check_nodes(const RunArguments& arguments, int nnodes) {
  if (arguments.standalone &&
      (nnodes > 1 || arguments.node_rank || arguments.master_addr || arguments.master_port)) {
    throw ArgumentError(
        "--standalone means one node that finds its own address and port, which contradicts --nnodes, "
        "--node-rank, "
        "--master-addr and --master-port: leave those out, or it");
  }
  if (nnodes == 1) return;
  if (!arguments.node_rank || !arguments.master_addr || !arguments.master_port) {
    throw ArgumentError(
        fmt::format("--nnodes {}: each node also needs --node-rank (0 on one node, then 1, 2, ...), and "
                    "all the same --master-addr and --master-port, where node 0 can be reached",
                    nnodes));
  }
}

// torchrun gives a standalone run an id of its own, too.
std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

launch::LaunchOptions launch_options(const RunArguments& arguments, const launch::Machine& machine) {
  const int nnodes = parse_nnodes(arguments.nnodes);
  check_nodes(arguments, nnodes);
  launch::LaunchOptions options{.command = arguments.command,
                                .nproc_per_node = launch::worker_count(arguments.nproc_per_node, machine),
                                .nnodes = nnodes,
                                .node_rank = arguments.node_rank.value_or(0),
                                .master_port = checked_port(arguments.master_port),
                                .grace_period = checked_grace(arguments.grace_period)};
  if (arguments.master_addr) options.master_addr = *arguments.master_addr;
  if (arguments.standalone) options.run_id = random_id();
  launch::validate(options);
  return options;
}

RunCommand::RunCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "run", "Run a program as several ranks: lockstep run [OPTIONS] [--] PROGRAM [ARGUMENTS...]")) {
  auto& run = *command_;
  run.add_option("--nproc-per-node,--nproc_per_node", parsed_.nproc_per_node,
                 "Ranks on this node: a number, gpu (one a GPU), cpu (one a core) or auto (gpu, else cpu)")
      ->type_name("N")
      ->capture_default_str();
  run.add_option("--nnodes", parsed_.nnodes, "Nodes; start this launcher once on each")
      ->type_name("N")
      ->capture_default_str();
  run.add_option("--node-rank,--node_rank", parsed_.node_rank, "This node's number among them, from 0")
      ->type_name("K");
  run.add_option("--master-addr,--master_addr", parsed_.master_addr,
                 "Where node 0 is reached (default 127.0.0.1)")
      ->type_name("ADDRESS");
  run.add_option("--master-port,--master_port", parsed_.master_port,
                 "A free port on node 0 (default, with one node: found)")
      ->type_name("PORT");
  run.add_flag("--standalone", parsed_.standalone, "One node with an address, port and run id of its own");
  run.add_option("--grace-period,--grace_period,--shutdown-timeout,--shutdown_timeout", parsed_.grace_period,
                 "Seconds that ranks have to stop before they are killed")
      ->type_name("SECONDS")
      ->capture_default_str();
  run.footer(
      "Ranks get torchrun's environment variables, /dev/null as stdin, and their lines are marked [rank N].\n"
      "The exit code is 0 when all ranks exit with 0, else that of the rank that failed first (128 + "
      "signal).");
  run.prefix_command();
}

RunArguments RunCommand::arguments(const std::vector<std::string>& rest) const {
  RunArguments arguments = parsed_;
  arguments.command = command_->remaining();
  if (!arguments.command.empty() && arguments.command.front().starts_with('-')) {
    throw ArgumentError(
        fmt::format("unknown option {} (see lockstep run --help)", arguments.command.front()));
  }
  // A "--" before the program ends the options; one after it belongs to the program.
  const bool ours = arguments.command.empty() && !rest.empty();
  arguments.command.insert(arguments.command.end(), rest.begin() + (ours ? 1 : 0), rest.end());
  return arguments;
}

int RunCommand::run(const std::vector<std::string>& rest) const {
  return launch::launch(launch_options(arguments(rest), launch::this_machine()));
}

}  // namespace lockstep::cli
