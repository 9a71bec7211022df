// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "commands.h"
#include "launch/options.h"
#include "run_arguments.h"

namespace lockstep::cli {

// Adds `lockstep run` to `app`; parsing sets `arguments`, except the command.
CLI::App& add_run_options(CLI::App& app, RunArguments& arguments);

// The command, after `run` has parsed the command line up to the first "--". `rest`: the command line from
// there on.
std::vector<std::string> program_words(const CLI::App& run, const std::vector<std::string>& rest);

// Throws ArgumentError, which names the option, for wrong values.
launch::LaunchOptions launch_options(const RunArguments& arguments, const launch::Machine& machine,
                                     const Env& env = {});

// `lockstep run [options] [--] program [arguments...]`. Options end at the program's name. `words`: the whole
// command line, which `run` reads.
Command run_command(CLI::App& app, const std::vector<std::string>& words);

}  // namespace lockstep::cli
