// SPDX-License-Identifier: BSD-3-Clause
#include "run_command.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>

namespace lockstep::cli {
namespace {

// torchrun's two spellings: "--node-rank,--node_rank", with a short one before them ("-r").
std::string spellings(const std::string& name, const std::string& before = "") {
  std::string underscored = name;
  std::ranges::replace(underscored, '-', '_');
  const std::string both = underscored == name ? "--" + name : fmt::format("--{},--{}", name, underscored);
  return before.empty() ? both : before + "," + both;
}

// torchrun reads PET_NODE_RANK where --node-rank is not given.
std::string variable_of(const std::string& name) {
  std::string variable = "PET_" + name;
  std::ranges::transform(variable, variable.begin(), [](char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  });
  return variable;
}

template <typename Value>
CLI::Option* add(CLI::App& app, const std::string& name, Value& value, const char* type, const char* help,
                 const char* short_name = "") {
  return app.add_option(spellings(name, short_name), value, help)
      ->type_name(type)
      ->envname(variable_of(name));
}

CLI::Option* add_flag(CLI::App& app, const std::string& name, bool& value, const char* help,
                      const char* short_name = "") {
  return app.add_flag(spellings(name, short_name), value, help)->envname(variable_of(name));
}

}  // namespace

RunCommand::RunCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "run", "Run a program as several ranks: lockstep run [OPTIONS] [--] PROGRAM [ARGUMENTS...]")) {
  add_node_options();
  add_rendezvous_options();
  add_program_options();
  add_output_options();
  add_own_options();
  add_torchrun_leftovers();
  command_->footer(
      "Ranks get torchrun's environment variables, /dev/null as stdin, and their lines are marked [rank N]\n"
      "([HOST rank N] with several nodes). A program that ends in .py is run by Python. Options may also "
      "come\n"
      "from the environment, as PET_NPROC_PER_NODE. The exit code is 0 when all ranks exit with 0, else "
      "that\n"
      "of the rank that failed first (128 + signal).");
  command_->prefix_command();
}

void RunCommand::add_node_options() {
  auto& run = *command_;
  add(run, "nproc-per-node", parsed_.nproc_per_node, "N",
      "Ranks on this node: a number, gpu (one a GPU), cpu (one a core) or auto (gpu, else cpu)")
      ->capture_default_str();
  add(run, "nnodes", parsed_.nnodes, "N|MIN:MAX", "Nodes; start this launcher once on each")
      ->capture_default_str();
  add(run, "node-rank", parsed_.node_rank, "K", "This node's number among them, from 0 (static rendezvous)");
  add(run, "master-addr", parsed_.master_addr, "ADDRESS", "Where node 0 is reached (default 127.0.0.1)");
  add(run, "master-port", parsed_.master_port, "PORT",
      "A free port on node 0 (default with one node: found; with several: 29500)");
  add(run, "local-addr", parsed_.local_addr, "ADDRESS", "Where other nodes reach this one (default: found)");
  add_flag(run, "standalone", parsed_.standalone, "One node with an address, port and run id of its own");
}

void RunCommand::add_rendezvous_options() {
  auto& run = *command_;
  add(run, "rdzv-backend", parsed_.rdzv_backend, "NAME",
      "How nodes meet: static (each is told its number) or c10d (numbered as they come, may come later)")
      ->capture_default_str();
  add(run, "rdzv-endpoint", parsed_.rdzv_endpoint, "HOST[:PORT]",
      "Where they meet (default port: 29400 for c10d)");
  add(run, "rdzv-id", parsed_.rdzv_id, "ID", "The run's name, the same on all nodes")->capture_default_str();
  add(run, "rdzv-conf", parsed_.rdzv_conf, "K=V,...",
      "join_timeout, last_call_timeout (seconds), keep_alive_interval, keep_alive_max_attempt, is_host");
  add(run, "max-restarts", parsed_.max_restarts, "N", "How often ranks are started again after a failure")
      ->capture_default_str();
}

void RunCommand::add_program_options() {
  auto& run = *command_;
  add_flag(run, "module", parsed_.module, "PROGRAM is a Python module, as with python -m", "-m");
  add_flag(run, "no-python", parsed_.no_python, "Execute PROGRAM itself, even when its name ends in .py");
  add_flag(run, "run-path", parsed_.run_path, "PROGRAM is a Python script, whatever its name");
  add(run, "role", parsed_.role, "NAME", "ROLE_NAME of the ranks")->capture_default_str();
  add_flag(run, "use-env", parsed_.use_env, "The local rank comes in LOCAL_RANK (always so)");
  add_flag(run, "pass-local-rank", parsed_.pass_local_rank,
           "Also pass --local-rank=K as the first argument, as torch.distributed.launch does");
  add_flag(run, "virtual-local-rank", parsed_.virtual_local_rank,
           "LOCAL_RANK is 0 everywhere, and each rank sees one GPU, as device 0");
}

void RunCommand::add_output_options() {
  auto& run = *command_;
  add(run, "log-dir", parsed_.log_dir, "FOLDER", "Where the files of --redirects and --tee go");
  add(run, "redirects", parsed_.redirects, "STREAMS",
      "Only into files: 1 (stdout), 2 (stderr), 3 (both), or by local rank, as in 0:3,1:2", "-r")
      ->capture_default_str();
  add(run, "tee", parsed_.tee, "STREAMS", "Into files and here", "-t")->capture_default_str();
  add(run, "local-ranks-filter", parsed_.local_ranks_filter, "K,...", "Show these local ranks only");
  add(run, "duplicate-stdout-filters", parsed_.duplicate_stdout_filters, "TEXT,...",
      "Lines with one of these also go into filtered_stdout.log (,, is a comma)");
  add(run, "duplicate-stderr-filters", parsed_.duplicate_stderr_filters, "TEXT,...",
      "Likewise, filtered_stderr.log");
  run.add_option(spellings("error-file"), parsed_.error_file,
                 "When the run fails, what failed first, as JSON")
      ->type_name("FILE")
      ->envname("TORCHELASTIC_ERROR_FILE");
}

void RunCommand::add_own_options() {
  auto& run = *command_;
  run.add_option(spellings("grace-period") + "," + spellings("shutdown-timeout"), parsed_.grace_period,
                 "Seconds that ranks have to stop before they are killed")
      ->type_name("SECONDS")
      ->envname("PET_SHUTDOWN_TIMEOUT")
      ->capture_default_str();
  add(run, "signals-to-handle", parsed_.signals_to_handle, "NAMES",
      "Signals that end the run, passed on to the ranks")
      ->capture_default_str();
  add(run, "bind", parsed_.bind, "HOW", "Keep ranks on cores of their own: none, compact or spread")
      ->capture_default_str();
  add(run, "memory-allocator", parsed_.memory_allocator, "NAME",
      "default, tuned (freed memory is kept for the next step), jemalloc or tcmalloc")
      ->capture_default_str();
}

void RunCommand::add_torchrun_leftovers() {
  auto& run = *command_;
  const std::string group = "torchrun's, accepted";
  add(run, "monitor-interval", parsed_.monitor_interval, "SECONDS",
      "Ranks are watched all the time, so this is kept")
      ->group(group);
  add(run, "start-method", parsed_.start_method, "NAME",
      "spawn, fork or forkserver: ranks are programs in any case")
      ->group(group);
  add(run, "event-log-handler", parsed_.event_log_handler, "NAME", "null")->group(group);
  run.add_option(spellings("logs-specs"), parsed_.logs_specs, "default")->group(group);
  run.add_option(spellings("numa-binding"), parsed_.numa_binding, "Use --bind")->group("");
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
