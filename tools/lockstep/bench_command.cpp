// SPDX-License-Identifier: BSD-3-Clause
#include "bench_command.h"

#include <filesystem>
#include <iostream>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/launch.h"
#include "lockstep_bench/options.h"

namespace lockstep::cli {
namespace {

std::filesystem::path bench_program() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe");
  const auto program = own.parent_path() / "lockstep-bench";
  if (std::filesystem::exists(program)) return program;
  throw LaunchError(
      fmt::format("lockstep bench needs the program {}, which does not exist; build the target "
                  "lockstep_bench, or install all of Lockstep",
                  program.string()));
}

// On a terminal the rows of the table show the progress.
bool shows_progress(const bench::Options& options) {
  const bool shows_rows = options.format != bench::Format::json && ::isatty(STDOUT_FILENO) != 0;
  return options.progress || (::isatty(STDERR_FILENO) != 0 && !shows_rows);
}

}  // namespace

BenchCommand::BenchCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "bench", "Measure collectives: lockstep bench [--nproc N] COLLECTIVE [OPTIONS...]")) {
  command_->add_option("--nproc,-n", ranks_, "Number of ranks");
  command_->set_help_flag();
  command_->allow_extras();
}

int BenchCommand::run() const {
  auto words = command_->remaining();
  try {
    const auto options = bench::parse_options(bench::Tool::lockstep_bench, words);
    if (!options.progress && shows_progress(options)) words.emplace_back("--progress");
  } catch (const bench::HelpWanted& help) {
    std::cout << help.text << std::flush;
    return 0;
  }
  words.insert(words.begin(), bench_program().string());
  return launch::launch({.command = words, .nproc_per_node = ranks_, .output = {.mark_lines = false}});
}

}  // namespace lockstep::cli
