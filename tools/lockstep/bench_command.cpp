// SPDX-License-Identifier: BSD-3-Clause
#include "bench_command.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>

namespace lockstep::cli {
namespace {

std::filesystem::path bench_program() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe");
  const auto program = own.parent_path() / "lockstep-bench";
  if (std::filesystem::exists(program)) return program;
  throw ArgumentError(
      fmt::format("lockstep bench needs the program {}, which is not there; build the target "
                  "lockstep_bench, or install Lockstep as a whole",
                  program.string()));
}

}  // namespace

BenchCommand::BenchCommand(CLI::App& app)
    : command_(app.add_subcommand("bench",
                                  "Time collectives: lockstep bench [--nproc N] COLLECTIVE [OPTIONS...]")) {
  command_->add_option("--nproc,-n", ranks_, "Ranks");
  command_->set_help_flag();
  command_->allow_extras();
}

int BenchCommand::run() const {
  launch::LaunchOptions options{
      .command = {bench_program().string()}, .nproc_per_node = ranks_, .mark_lines = false};
  const auto rest = command_->remaining();
  options.command.insert(options.command.end(), rest.begin(), rest.end());
  const bool asks_for_help = rest.empty() || std::ranges::any_of(rest, [](const auto& word) {
                               return word == "--help" || word == "-h";
                             });
  if (asks_for_help) {
    options.command = {options.command.front(), "--help"};
    options.nproc_per_node = 1;
  }
  return launch::launch(options);
}

}  // namespace lockstep::cli
