// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <memory>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "base/throw_error.h"
#include "commands.h"
#include "launch/launch.h"
#include "lockstep_bench/options.h"

namespace lockstep::cli {
namespace {

std::string bench_program() {
  const auto program = own_program().replace_filename("lockstep-bench");
  if (std::filesystem::exists(program)) return program.string();
  throw_error<LaunchError>(
      "lockstep bench needs the program {}, which does not exist; build the target "
      "lockstep_bench, or install all of Lockstep",
      program.string());
}

// On a terminal the rows of the table show the progress.
bool shows_progress(const bench::Options& options) {
  const bool shows_rows = options.format != bench::Format::json && ::isatty(STDOUT_FILENO) != 0;
  return options.progress || (::isatty(STDERR_FILENO) != 0 && !shows_rows);
}

// By `lockstep run`.
int run_bench_on(const std::string& hosts, const std::vector<std::string>& words, int ranks) {
  std::vector<std::string> whole{
      "run",           "--hosts",     hosts, "--nproc-per-node", std::to_string(ranks),
      "--plain-lines", "--no-python", "--",  bench_program()};
  whole.insert(whole.end(), words.begin(), words.end());
  return run(whole);
}

int run_bench(std::vector<std::string> words, const std::string& hosts, int ranks) {
  try {
    const auto options = bench::parse_options(bench::Tool::lockstep_bench, words);
    if (!options.progress && shows_progress(options)) words.emplace_back("--progress");
  } catch (const bench::HelpWanted& help) {
    std::cout << help.text << std::flush;
    return 0;
  }
  if (!hosts.empty()) return run_bench_on(hosts, words, ranks);
  words.insert(words.begin(), bench_program());
  return launch::launch({.command = words, .nproc_per_node = ranks, .output = {.mark_lines = false}});
}

}  // namespace

Command bench_command(CLI::App& app) {
  auto* bench =
      app.add_subcommand("bench", "Measure collectives: lockstep bench [--nproc N] COLLECTIVE [OPTIONS...]");
  const auto ranks = std::make_shared<int>(2);
  const auto hosts = std::make_shared<std::string>();
  bench->add_option("--nproc,-n", *ranks, "Number of ranks, on each host");
  bench->add_option("--hosts", *hosts, "Run on these hosts, as lockstep run does");
  bench->set_help_flag();
  bench->allow_extras();
  return {.app = bench,
          .run = [=](const auto& /*rest*/) { return run_bench(bench->remaining(), *hosts, *ranks); }};
}

namespace {

[[noreturn]] void become(const std::string& name, std::vector<std::string> words) {
  words.insert(words.begin(), own_program().replace_filename("lockstep-" + name).string());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv.front(), argv.data());
  throw_error<LaunchError>(
      "lockstep {} needs the program {}, which cannot be started: {}; build all "
      "targets, or install all of Lockstep",
      name, words.front(), errno_text(errno));
}

// The command `name`, whose words go to the program lockstep-<name>.
Command program_command(CLI::App& app, const std::string& name, const std::string& description) {
  auto* command = app.add_subcommand(name, description);
  command->set_help_flag();
  // A file may have the name of a subcommand.
  command->prefix_command();
  return {.app = command, .run = [command, name](const auto& rest) -> int {
            auto words = command->remaining();
            words.insert(words.end(), rest.begin(), rest.end());
            become(name, std::move(words));
          }};
}

}  // namespace

Command ckpt_command(CLI::App& app) {
  return program_command(app, "ckpt",
                         "Show, compare, convert and verify checkpoints: lockstep ckpt show FILE");
}

Command plan_command(CLI::App& app) {
  return program_command(app, "plan",
                         "Estimate time and memory of meshes: lockstep plan --gpt 12,768,50257,1024");
}

}  // namespace lockstep::cli
