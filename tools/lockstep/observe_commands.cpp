// SPDX-License-Identifier: BSD-3-Clause
#include "observe_commands.h"

#include <chrono>
#include <clocale>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/throw_error.h"
#include "observe/find_runs.h"
#include "observe/recorder_files.h"
#include "observe/stack_report.h"
#include "observe/verdict.h"
#include "run_on_hosts.h"
#include "top.h"
#include "top_table.h"

namespace lockstep::cli {
namespace {

constexpr const char* kHostsHelp =
    "Show the ranks of all hosts of a run on several hosts, through their launchers";

int dump(const std::string& run, const std::string& folder) {
  const auto files = observe::write_recorder_files(observe::find_run(run).read(), folder);
  for (const auto& file : files) std::cout << file.string() << '\n';
  std::cout << std::flush;
  return 0;
}

observe::Run run_of(const std::string& source, bool hosts) {
  const bool is_folder = std::filesystem::is_directory(source);
  if (hosts && is_folder) {
    throw_error<ArgumentError>(
        "--hosts: {} is a folder, whose files of all hosts are read anyway; leave --hosts out", source);
  }
  if (hosts) return RunOnHosts(source).read().run;
  return is_folder ? observe::read_recorder_files(source) : observe::find_run(source).read();
}

int analyze(const std::string& source, bool json, bool hosts) {
  const auto run = run_of(source, hosts);
  const auto verdict = observe::judge(run);
  if (json) {
    auto report = observe::to_json(run);
    report["verdict"] = observe::to_json(verdict);
    std::cout << report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  } else {
    std::setlocale(LC_CTYPE, "");  // which characters can be shown
    std::cout << printable_text(verdict.text) << '\n';
    for (const auto& line : unseen_lines(run)) std::cout << printable_text(line) << '\n';
    std::cout << std::flush;
  }
  return verdict.cause == observe::Cause::none ? 0 : 1;
}

}  // namespace

Command recorder_command(CLI::App& app) {
  struct Options {
    std::string run{};
    std::string folder = "recorder";
    std::string source{};
    bool json = false;
    bool hosts = false;
  };
  const auto options = std::make_shared<Options>();
  auto* recorder = app.add_subcommand("recorder", "Show what the ranks of a run on this host are doing");
  recorder->require_subcommand(1);
  auto* dumping = recorder->add_subcommand(
      "dump", "Write the last calls of each rank to files, which torchfrtrace reads");
  dumping->add_option("run", options->run, kRunHelp)->type_name("RUN");
  dumping->add_option("--out", options->folder, "Folder for the files (default: recorder)")->type_name("DIR");
  auto* analyzing = recorder->add_subcommand(
      "analyze", "Say in a paragraph which rank keeps the others waiting or has another fault, and why");
  analyzing->add_option("run", options->source, std::string(kRunHelp) + "; or a folder that dump wrote")
      ->type_name("RUN|DIR");
  analyzing->add_flag("--json", options->json, "Print the verdict and all calls as JSON");
  analyzing->add_flag("--hosts", options->hosts, kHostsHelp);
  analyzing->footer("The exit code is 0 if no rank has a fault, else 1.");
  return {.app = recorder, .run = [options, dumping](const auto& /*rest*/) {
            if (dumping->parsed()) return dump(options->run, options->folder);
            return analyze(options->source, options->json, options->hosts);
          }};
}

Command stacks_command(CLI::App& app) {
  const auto run = std::make_shared<std::string>();
  auto* stacks =
      app.add_subcommand("stacks", "Show where the threads of the ranks of a run on this host are");
  stacks->add_option("run", *run, kRunHelp)->type_name("RUN");
  return {.app = stacks, .run = [run](const auto& /*rest*/) {
            std::setlocale(LC_CTYPE, "");  // which characters can be shown
            std::cout << printable_lines(observe::stacks_text(observe::find_run(*run))) << std::flush;
            return 0;
          }};
}

namespace {

constexpr double kShortestInterval = 0.05;
constexpr double kLongestInterval = 3600;

std::chrono::milliseconds checked_interval(double seconds) {
  if (seconds >= kShortestInterval && seconds <= kLongestInterval)
    return std::chrono::milliseconds(std::llround(seconds * 1000));
  throw_error<ArgumentError>("--interval {}: the seconds must be in {} .. {}", seconds, kShortestInterval,
                             kLongestInterval);
}

}  // namespace

Command top_command(CLI::App& app) {
  struct Options {
    std::string run{};
    bool once = false;
    bool json = false;
    bool hosts = false;
    double interval = 1;
  };
  const auto options = std::make_shared<Options>();
  auto* top = app.add_subcommand("top", "Show the ranks of a run on this host while it runs");
  top->add_option("run", options->run, kRunHelp)->type_name("RUN");
  auto* const once = top->add_flag("--once", options->once, "Print the table once, as text");
  top->add_flag("--json", options->json, "Print the verdict, all calls and the figures as JSON")->needs(once);
  top->add_flag("--hosts", options->hosts, kHostsHelp);
  top->add_option("--interval", options->interval, "Read the ranks every SECONDS (default 1)")
      ->type_name("SECONDS")
      ->excludes(once);
  top->footer("The exit code of --once is 1 if a rank keeps others waiting, else 0.");
  return {.app = top, .run = [options](const auto& /*rest*/) {
            if (options->once) return print_run(options->run, options->json, options->hosts);
            return show_run(options->run, checked_interval(options->interval), options->hosts);
          }};
}

}  // namespace lockstep::cli
