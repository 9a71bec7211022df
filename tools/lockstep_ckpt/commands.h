// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

// A subcommand, and the function that runs it and returns the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// `show FILE [--json]`: lists the entries of a checkpoint without reading tensor data.
Command add_show_command(CLI::App& app);
// `diff A B [--rtol X] [--atol X]`: compares two checkpoints of any formats; exit code 1 if they differ.
Command add_diff_command(CLI::App& app);
// `verify FILES...`: checks that checkpoints are intact.
Command add_verify_command(CLI::App& app);

}  // namespace lockstep::ckpt
