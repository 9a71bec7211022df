// SPDX-License-Identifier: BSD-3-Clause
#include "run_command.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/launch.h"

namespace lockstep::cli {
namespace {

// torchrun's two spellings: "--node-rank,--node_rank", with a short one before them ("-r").
std::string spellings(const std::string& name, const std::string& before = "") {
  std::string underscored = name;
  std::ranges::replace(underscored, '-', '_');
  const std::string both = underscored == name ? "--" + name : fmt::format("--{},--{}", name, underscored);
  return before.empty() ? both : before + "," + both;
}

// torchrun reads PET_NODE_RANK if --node-rank is not given.
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
      "Ranks get torchrun's environment variables, and /dev/null as stdin. Their lines begin with [rank N], "
      "or\n"
      "[HOST rank N] with several nodes. Python runs a program whose name ends in .py. An option can also be "
      "set\n"
      "in the environment, as PET_NPROC_PER_NODE. The exit code is 0 if all ranks exit with 0, else that of "
      "the\n"
      "rank that failed first (128 + signal).");
  command_->prefix_command();
}

void RunCommand::add_node_options() {
  auto& run = *command_;
  add(run, "nproc-per-node", parsed_.nproc_per_node, "N",
      "Ranks on this node: a number, gpu (one per GPU), cpu (one per core) or auto (gpu, else cpu)")
      ->capture_default_str();
  add(run, "nnodes", parsed_.nnodes, "N|MIN:MAX", "Number of nodes; start this launcher once on each node")
      ->capture_default_str();
  add(run, "node-rank", parsed_.node_rank, "K", "This node's number, from 0 (static rendezvous)");
  add(run, "master-addr", parsed_.master_addr, "ADDRESS", "Address of node 0 (default 127.0.0.1)");
  add(run, "master-port", parsed_.master_port, "PORT",
      "Free port on node 0 (default: any free port with one node, 29500 with several)");
  add(run, "local-addr", parsed_.local_addr, "ADDRESS",
      "Address of this node for the other nodes (default: detected)");
  add_flag(run, "standalone", parsed_.standalone, "One node, with its own address, port and run id");
}

void RunCommand::add_rendezvous_options() {
  auto& run = *command_;
  add(run, "rdzv-backend", parsed_.rdzv_backend, "NAME",
      "static (each node has its --node-rank) or c10d (nodes get numbers when they join, and may join later)")
      ->capture_default_str();
  add(run, "rdzv-endpoint", parsed_.rdzv_endpoint, "HOST[:PORT]",
      "Address of the rendezvous (default port: 29400 for c10d)");
  add(run, "rdzv-id", parsed_.rdzv_id, "ID", "Name of the run, the same on all nodes")->capture_default_str();
  add(run, "rdzv-conf", parsed_.rdzv_conf, "K=V,...",
      "join_timeout, last_call_timeout (seconds), keep_alive_interval, keep_alive_max_attempt, is_host");
  add(run, "max-restarts", parsed_.max_restarts, "N", "Number of restarts after failures")
      ->capture_default_str();
}

void RunCommand::add_program_options() {
  auto& run = *command_;
  add_flag(run, "module", parsed_.module, "PROGRAM is a Python module, as with python -m", "-m");
  add_flag(run, "no-python", parsed_.no_python, "Execute PROGRAM itself, even if its name ends in .py");
  add_flag(run, "run-path", parsed_.run_path, "PROGRAM is a Python script, whatever its name");
  add(run, "role", parsed_.role, "NAME", "ROLE_NAME of the ranks")->capture_default_str();
  add_flag(run, "use-env", parsed_.use_env, "Set LOCAL_RANK (always done)");
  add_flag(run, "pass-local-rank", parsed_.pass_local_rank,
           "Pass --local-rank=K as the first argument, as torch.distributed.launch does");
  add_flag(run, "virtual-local-rank", parsed_.virtual_local_rank,
           "LOCAL_RANK is 0 in all ranks, and each rank sees one GPU, as device 0");
}

void RunCommand::add_output_options() {
  auto& run = *command_;
  add(run, "log-dir", parsed_.log_dir, "FOLDER", "Folder for the files of --redirects and --tee");
  add(run, "redirects", parsed_.redirects, "STREAMS",
      "Write to files only: 1 (stdout), 2 (stderr), 3 (both), or by local rank, as in 0:3,1:2", "-r")
      ->capture_default_str();
  add(run, "tee", parsed_.tee, "STREAMS", "Write to files and show", "-t")->capture_default_str();
  add(run, "local-ranks-filter", parsed_.local_ranks_filter, "K,...", "Show these local ranks only");
  add(run, "duplicate-stdout-filters", parsed_.duplicate_stdout_filters, "TEXT,...",
      "Copy lines with one of these texts to filtered_stdout.log (,, is a comma)");
  add(run, "duplicate-stderr-filters", parsed_.duplicate_stderr_filters, "TEXT,...",
      "The same for filtered_stderr.log");
  run.add_option(spellings("error-file"), parsed_.error_file,
                 "Gets the first failure as JSON when the run fails")
      ->type_name("FILE")
      ->envname("TORCHELASTIC_ERROR_FILE");
}

void RunCommand::add_own_options() {
  auto& run = *command_;
  run.add_option(spellings("grace-period") + "," + spellings("shutdown-timeout"), parsed_.grace_period,
                 "Seconds from the stop signal to SIGKILL")
      ->type_name("SECONDS")
      ->envname("PET_SHUTDOWN_TIMEOUT")
      ->capture_default_str();
  add(run, "signals-to-handle", parsed_.signals_to_handle, "NAMES",
      "Signals that end the run and are forwarded to the ranks")
      ->capture_default_str();
  add(run, "bind", parsed_.bind, "HOW", "Bind each rank to its own cores: none, compact or spread")
      ->capture_default_str();
  add(run, "memory-allocator", parsed_.memory_allocator, "NAME",
      "default, tuned (keeps freed memory for the next step), jemalloc or tcmalloc")
      ->capture_default_str();
}

void RunCommand::add_torchrun_leftovers() {
  auto& run = *command_;
  const std::string group = "Accepted for torchrun, without effect";
  add(run, "monitor-interval", parsed_.monitor_interval, "SECONDS", "Ranks are watched continuously")
      ->group(group);
  add(run, "start-method", parsed_.start_method, "NAME",
      "spawn, fork or forkserver; ranks are separate programs")
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
