// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

constexpr int kUsageError = 2;

// What names a run.
constexpr const char* kRunHelp =
    "PID of a rank or of a process above it, such as its launcher, or the launcher's --run-id (default: the only run)";

// The `lockstep` command with `arguments` (argv without argv[0]). Returns the exit code; errors are one line
// on stderr. Exit code 2: wrong command line.
int run(const std::vector<std::string>& arguments);

// A subcommand of `app`. `run`, for a command line that names it, returns the exit code. It gets the command
// line from the first "--" on.
struct Command {
  CLI::App* app = nullptr;
  std::function<int(const std::vector<std::string>& rest)> run{};
};

// `lockstep bench [--nproc N] [--hosts a,b:4] COLLECTIVE [OPTIONS...]`: runs the program lockstep-bench, in
// the folder of this one, as N ranks (of each host). The other options are that program's; they are parsed
// here first, so that an error appears once and before a rank starts.
Command bench_command(CLI::App& app);

// `lockstep ckpt show|diff|convert|verify|strip-prefix|merge ...` and `lockstep plan ...`: each executes the
// program lockstep-ckpt or lockstep-plan in the folder of this one.
Command ckpt_command(CLI::App& app);
Command plan_command(CLI::App& app);

// `lockstep devices [--json] [--watch[=SECONDS]]`: cores, memory, NUMA nodes and GPUs of this host. With
// --watch, until Ctrl-C, SIGTERM (exit code 0) or the end of stdout's reader.
Command devices_command(CLI::App& app);

// `lockstep doctor [--json] [--port P] [--hosts a,b,... [--ssh COMMAND] [--program PATH]] [--report[=FILE] [--run RUN|DIR]]`:
// checks this host or several before training, or writes a file for an issue. Exit code 0 without problems, else 1.
Command doctor_command(CLI::App& app);

}  // namespace lockstep::cli
