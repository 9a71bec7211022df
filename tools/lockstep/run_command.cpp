// SPDX-License-Identifier: BSD-3-Clause
#include "run_command.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "base/throw_error.h"
#include "launch/launch.h"
#include "launch/worker_group.h"
#include "machine/host.h"
#include "rank_watch.h"
#include "run_observed.h"

namespace lockstep::cli {
namespace {

using Words = std::initializer_list<const char*>;

constexpr double kMostSeconds = 24 * 3600;

std::chrono::milliseconds checked_grace(double seconds) {
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {
    throw_error<ArgumentError>("--grace-period {}: the seconds must be in 0 .. {}", seconds, kMostSeconds);
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

void check_choice(const char* option, const std::string& value, const Words& allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  throw_error<ArgumentError>("{} {}: use {}", option, value, fmt::join(allowed, ", "));
}

// Options of torchrun that have no effect, or that other options replace.
void check_torchruns_own(const RunArguments& arguments) {
  // Each rank is a separate program in any case.
  check_choice("--start-method", arguments.start_method, Words{"spawn", "fork", "forkserver"});
  check_choice("--event-log-handler", arguments.event_log_handler, Words{"null"});
  check_choice("--logs-specs", arguments.logs_specs, Words{"default"});
  if (!(arguments.monitor_interval > 0 && arguments.monitor_interval <= kMostSeconds)) {
    throw_error<ArgumentError>("--monitor-interval {}: use seconds above 0", arguments.monitor_interval);
  }
  if (!arguments.numa_binding.empty()) {
    throw_error<ArgumentError>(
        "--numa-binding {} is not supported; use --bind compact (adjacent cores) or --bind "
        "spread (ranks distributed over "
        "the NUMA nodes)",
        arguments.numa_binding);
  }
}

std::string python(const Env& env) {
  if (const auto chosen = env.get("PYTHON_EXEC")) return *chosen;
  try {
    launch::find_program("python3", env);
    return "python3";
  } catch (const launch::ProgramError&) {
    return "python";
  }
}

bool needs_python(const RunArguments& arguments) {
  if (arguments.module || arguments.run_path) return true;
  return !arguments.no_python && !arguments.command.empty() && arguments.command.front().ends_with(".py");
}

void set_command(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options) {
  if (arguments.module && arguments.no_python) {
    throw ArgumentError("--module and --no-python contradict each other; give one of them");
  }
  options.command = arguments.command;
  if (arguments.command.empty() || !needs_python(arguments)) return;
  std::vector<std::string> interpreter{python(env), "-u"};
  if (arguments.module) interpreter.emplace_back("-m");
  options.program_words = static_cast<int>(interpreter.size()) + 1;
  options.command.insert(options.command.begin(), interpreter.begin(), interpreter.end());
}

std::set<int> parse_ranks(const std::string& text) {
  std::set<int> ranks;
  for (auto number : split(text, ',')) {
    std::erase(number, ' ');
    const auto rank = parse_number<int>(number);
    if (!rank || *rank < 0) {
      throw_error<ArgumentError>("--local-ranks-filter {}: use local ranks, as in 0,2", text);
    }
    ranks.insert(*rank);
  }
  return ranks;
}

// At commas; a double comma is a comma of the text.
std::vector<std::string> split_texts(const std::string& list) {
  std::vector<std::string> texts(1);
  for (std::size_t at = 0; at < list.size(); ++at) {
    const bool doubled = list[at] == ',' && at + 1 < list.size() && list[at + 1] == ',';
    if (list[at] == ',' && !doubled) {
      texts.emplace_back();
    } else {
      texts.back() += list[at];
    }
    if (doubled) ++at;
  }
  std::erase(texts, "");
  return texts;
}

std::optional<std::string> prefix_template(const RunArguments& arguments, const Env& env) {
  if (!arguments.log_line_prefix_template.empty()) return arguments.log_line_prefix_template;
  return env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
}

launch::OutputOptions output_options(const RunArguments& arguments, const Env& env) {
  return {.log_dir = arguments.log_dir,
          .redirects = launch::parse_streams(arguments.redirects, "--redirects"),
          .tee = launch::parse_streams(arguments.tee, "--tee"),
          .shown = parse_ranks(arguments.local_ranks_filter),
          .duplicate_stdout_filters = split_texts(arguments.duplicate_stdout_filters),
          .duplicate_stderr_filters = split_texts(arguments.duplicate_stderr_filters),
          .mark_lines = !arguments.plain_lines,
          .prefix_template = prefix_template(arguments, env),
          .error_file = arguments.error_file};
}

machine::Binding parse_binding(const std::string& text) {
  check_choice("--bind", text, Words{"none", "compact", "spread"});
  if (text == "compact") return machine::Binding::compact;
  return text == "spread" ? machine::Binding::spread : machine::Binding::none;
}

launch::OnLoss parse_on_loss(const std::string& text) {
  check_choice("--on-loss", text, Words{"restart", "replace", "oversubscribe", "shrink"});
  if (text == "oversubscribe") return launch::OnLoss::oversubscribe;
  if (text == "shrink") return launch::OnLoss::shrink;
  return text == "replace" ? launch::OnLoss::replace : launch::OnLoss::restart;
}

}  // namespace

launch::LaunchOptions launch_options(const RunArguments& arguments, const launch::Machine& machine,
                                     const Env& env) {
  check_torchruns_own(arguments);
  launch::LaunchOptions options{.nproc_per_node = launch::worker_count(arguments.nproc_per_node, machine),
                                .local_addr = arguments.local_addr,
                                .role = arguments.role,
                                .max_restarts = arguments.max_restarts,
                                .on_loss = parse_on_loss(arguments.on_loss),
                                .min_ranks = arguments.min_ranks,
                                .spares = arguments.spares,
                                .virtual_local_rank = arguments.virtual_local_rank,
                                .pass_local_rank = arguments.pass_local_rank,
                                .stop_signals = launch::parse_signals(arguments.signals_to_handle),
                                .bind = parse_binding(arguments.bind),
                                .memory_allocator = arguments.memory_allocator,
                                .output = output_options(arguments, env),
                                .metrics = metrics_options(arguments, env),
                                .grace_period = checked_grace(arguments.grace_period),
                                .shows_limits = arguments.verbose,
                                .has_host_control = arguments.host_index.has_value()};
  if (arguments.use_env && arguments.pass_local_rank) {
    throw ArgumentError("--use-env and --pass-local-rank contradict each other; give one of them");
  }
  set_command(arguments, env, options);
  set_rendezvous(arguments, env, options);
  launch::validate(options);
  if (const auto watch = watch_options(arguments, options))
    options.progress_timeout = watch->progress_timeout;
  return options;
}

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

void add_node_options(CLI::App& run, RunArguments& parsed) {
  add(run, "nproc-per-node", parsed.nproc_per_node, "N",
      "Ranks on this node: a number, gpu (one per GPU), cpu (one per core) or auto (gpu, else cpu)");
  add(run, "nnodes", parsed.nnodes, "N|MIN:MAX", "Number of nodes; start this launcher once on each node");
  add(run, "node-rank", parsed.node_rank, "K", "This node's number, from 0 (static rendezvous)");
  add(run, "master-addr", parsed.master_addr, "ADDRESS", "Address of node 0 (default 127.0.0.1)");
  add(run, "master-port", parsed.master_port, "PORT",
      "Free port on node 0 (default: any free port with one node, 29500 with several)");
  add(run, "local-addr", parsed.local_addr, "ADDRESS",
      "Address of this node for the other nodes (default: detected)");
  add_flag(run, "standalone", parsed.standalone, "One node, with its own address, port and run id");
}

void add_rendezvous_options(CLI::App& run, RunArguments& parsed) {
  add(run, "rdzv-backend", parsed.rdzv_backend, "NAME",
      "static (each node has its --node-rank) or c10d (nodes get numbers when they join, and may join later)");
  add(run, "rdzv-endpoint", parsed.rdzv_endpoint, "HOST[:PORT]",
      "Address of the rendezvous (default port: 29400 for c10d)");
  add(run, "rdzv-id", parsed.rdzv_id, "ID", "Name of the run, the same on all nodes");
  add(run, "rdzv-conf", parsed.rdzv_conf, "K=V,...",
      "join_timeout, last_call_timeout (seconds), keep_alive_interval, keep_alive_max_attempt, is_host");
  add(run, "secret-file", parsed.secret_file, "FILE",
      "File with the secret of the run, which authenticates the launchers of its nodes (default: the file "
      "that LOCKSTEP_SECRET_FILE names, or the text of LOCKSTEP_SECRET)");
  add(run, "max-restarts", parsed.max_restarts, "N", "Number of restarts after failures");
  add(run, "on-loss", parsed.on_loss, "WHAT",
      "While restarts are left, a failure starts again all ranks (restart), or only the rank that failed (replace; "
      "oversubscribe: the ranks of a lost host start again on another host); or the other ranks go on without it (shrink). "
      "All but restart: for programs that use lockstep::elastic::run(); oversubscribe: several hosts; shrink: one host");
  add(run, "min-ranks", parsed.min_ranks, "N",
      "With --on-loss shrink: fewer ranks than these do not go on, so that the failure starts again all ranks while restarts "
      "are left");
  add(run, "spares", parsed.spares, "K",
      "Processes of the program that are started in advance, and replace ranks at once (with --on-loss replace)");
  add(run, "progress-timeout", parsed.progress_timeout, "SECONDS",
      "Show the stack of a rank that makes no progress for this time and waits for no other rank, and kill it (one host; "
      "default: no limit)");
  add(run, "slow-factor", parsed.slow_factor, "FACTOR",
      "Name a rank that is last in each of the last --slow-steps steps: it takes at least FACTOR times as long by itself as "
      "the others, who wait for it (one host; default: none)");
  add(run, "slow-steps", parsed.slow_steps, "N",
      "Steps for --slow-factor, and the fewest between two lines about a rank");
  add(run, "on-slow", parsed.on_slow, "WHAT",
      "report: --slow-factor only names a rank; replace: the rank is killed and replaced (with --on-loss replace)");
}

void add_hosts_options(CLI::App& run, RunArguments& parsed) {
  add(run, "hosts", parsed.hosts, "HOST[:RANKS],...",
      "Start a launcher on each of these hosts by ssh, instead of one on this host; node 0 is the first one");
  add(run, "ssh", parsed.ssh, "COMMAND", "Remote shell for --hosts (default: ssh without prompts)");
  add(run, "lockstep", parsed.lockstep, "PATH",
      "Path of lockstep on the hosts (default: the path on this host)");
  add(run, "export", parsed.exported, "NAME[=VALUE],...",
      "Environment variables for the hosts; without a value, that of this host", "-x")
      ->delimiter(',')
      ->default_str("");
  run.add_option("--host-index", parsed.host_index)->group("");
  run.add_option("--adopt", parsed.adopt)->group("");
  run.add_flag("--plain-lines", parsed.plain_lines)->group("");
}

void add_program_options(CLI::App& run, RunArguments& parsed) {
  add_flag(run, "module", parsed.module, "PROGRAM is a Python module, as with python -m", "-m");
  add_flag(run, "no-python", parsed.no_python, "Execute PROGRAM itself, even if its name ends in .py");
  add_flag(run, "run-path", parsed.run_path, "PROGRAM is a Python script, whatever its name");
  add(run, "role", parsed.role, "NAME", "ROLE_NAME of the ranks");
  add_flag(run, "use-env", parsed.use_env, "Set LOCAL_RANK (always done)");
  add_flag(run, "pass-local-rank", parsed.pass_local_rank,
           "Pass --local-rank=K as the first argument, as torch.distributed.launch does");
  add_flag(run, "virtual-local-rank", parsed.virtual_local_rank,
           "LOCAL_RANK is 0 in all ranks, and each rank sees one GPU, as device 0");
}

void add_output_options(CLI::App& run, RunArguments& parsed) {
  add(run, "log-dir", parsed.log_dir, "FOLDER", "Folder for the files of --redirects and --tee");
  add(run, "redirects", parsed.redirects, "STREAMS",
      "Write to files only: 1 (stdout), 2 (stderr), 3 (both), or by local rank, as in 0:3,1:2", "-r");
  add(run, "tee", parsed.tee, "STREAMS", "Write to files and show", "-t");
  add(run, "log-line-prefix-template", parsed.log_line_prefix_template, "TEXT",
      "Prefix of lines; may contain ${role_name}, ${local_rank}, ${rank} and ${hostname} (default: [rank N], "
      "or TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE)");
  add(run, "local-ranks-filter", parsed.local_ranks_filter, "K,...", "Show these local ranks only");
  add(run, "duplicate-stdout-filters", parsed.duplicate_stdout_filters, "TEXT,...",
      "Copy lines with one of these texts to filtered_stdout.log (,, is a comma)");
  add(run, "duplicate-stderr-filters", parsed.duplicate_stderr_filters, "TEXT,...",
      "The same for filtered_stderr.log");
  run.add_option(spellings("error-file"), parsed.error_file,
                 "Gets the first failure as JSON when the run fails")
      ->type_name("FILE")
      ->envname("TORCHELASTIC_ERROR_FILE");
  add(run, "report", parsed.report, "FILE",
      "Write a page about the run when it ends, also when it fails: phases, throughput, reported numbers, late "
      "ranks, memory, faults (HTML; with --hosts one page per host, FILE with -node<K>)");
}

void add_metrics_options(CLI::App& run, RunArguments& parsed) {
  add(run, "metrics-port", parsed.metrics_port, "PORT",
      "Serve metrics of this host's ranks for Prometheus at http://ADDRESS:PORT/metrics (0: any free port, "
      "which is printed)");
  add(run, "metrics-bind", parsed.metrics_bind, "ADDRESS",
      "Address of this host for --metrics-port (default: 127.0.0.1); one that other hosts can reach needs "
      "--metrics-token-file");
  add(run, "metrics-token-file", parsed.metrics_token_file, "FILE",
      "File with the bearer token that requests for metrics must have");
}

void add_own_options(CLI::App& run, RunArguments& parsed) {
  run.add_option(spellings("grace-period") + "," + spellings("shutdown-timeout"), parsed.grace_period,
                 "Seconds from the stop signal to SIGKILL")
      ->type_name("SECONDS")
      ->envname("PET_SHUTDOWN_TIMEOUT");
  add(run, "signals-to-handle", parsed.signals_to_handle, "NAMES",
      "Signals that end the run and are forwarded to the ranks; SIGUSR1 and SIGUSR2 are forwarded in any case");
  add_flag(run, "verbose", parsed.verbose, "Print the time limits of the launcher and of the ranks", "-v");
  add(run, "bind", parsed.bind, "HOW", "Bind each rank to its own cores: none, compact or spread");
  add(run, "memory-allocator", parsed.memory_allocator, "NAME",
      "default, tuned (keeps freed memory for the next step), jemalloc or tcmalloc");
}

void add_torchrun_leftovers(CLI::App& run, RunArguments& parsed) {
  const std::string group = "Accepted for torchrun, without effect";
  add(run, "monitor-interval", parsed.monitor_interval, "SECONDS", "Ranks are watched continuously")
      ->group(group);
  add(run, "start-method", parsed.start_method, "NAME",
      "spawn, fork or forkserver; ranks are separate programs")
      ->group(group);
  add(run, "event-log-handler", parsed.event_log_handler, "NAME", "null")->group(group);
  run.add_option(spellings("logs-specs"), parsed.logs_specs, "default")->group(group);
  run.add_option(spellings("numa-binding"), parsed.numa_binding, "Use --bind")->group("");
}

// The hosts find most errors, but a user reads each of them once.
launch::LaunchOptions checked_here(const RunArguments& arguments, const Env& env) {
  constexpr int many = std::numeric_limits<int>::max();
  return launch_options(arguments, {.cores = many, .gpus = many}, env);
}

}  // namespace

CLI::App& add_run_options(CLI::App& app, RunArguments& arguments) {
  auto& run = *app.add_subcommand(
      "run", "Run a program as several ranks: lockstep run [OPTIONS] [--] PROGRAM [ARGUMENTS...]");
  run.option_defaults()->always_capture_default();
  for (const auto add_some :
       {add_node_options, add_rendezvous_options, add_hosts_options, add_program_options, add_output_options,
        add_metrics_options, add_own_options, add_torchrun_leftovers}) {
    add_some(run, arguments);
  }
  run.footer(
      "Ranks get torchrun's environment variables, and /dev/null as stdin. Their lines begin with\n"
      "[rank N], or [HOST rank N] with several nodes. Python runs a program whose name ends in .py. An\n"
      "option can also be set in the environment, as PET_NPROC_PER_NODE. The exit code is 0 if all ranks\n"
      "exit with 0, 75 if ranks exit with 75 and none fails (a signal has interrupted the run), else that of\n"
      "the rank that failed first (128 + signal).");
  run.prefix_command();
  return run;
}

std::vector<std::string> program_words(const CLI::App& run, const std::vector<std::string>& rest) {
  auto words = run.remaining();
  if (!words.empty() && words.front().starts_with('-')) {
    throw_error<ArgumentError>("unknown option {} (see lockstep run --help)", words.front());
  }
  // A "--" before the program ends the options; one after it belongs to the program.
  const bool ours = words.empty() && !rest.empty();
  words.insert(words.end(), rest.begin() + (ours ? 1 : 0), rest.end());
  return words;
}

Command run_command(CLI::App& app, const std::vector<std::string>& words) {
  const auto arguments = std::make_shared<RunArguments>();
  auto& run = add_run_options(app, *arguments);
  return {.app = &run, .run = [&run, &words, arguments](const auto& rest) {
            arguments->command = program_words(run, rest);
            if (!arguments->hosts.empty() && !arguments->host_index) {
              const Env env;
              return launch::launch_on_hosts(
                  hosts_options(*arguments, checked_here(*arguments, env), words, env));
            }
            return launch_here(*arguments, words);
          }};
}

}  // namespace lockstep::cli
