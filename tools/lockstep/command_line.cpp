// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iostream>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "commands.h"
#include "launch/worker_group.h"

namespace lockstep::cli {
namespace {

int parse_and_run(const std::vector<std::string>& arguments) {
  CLI::App app("Distributed data-parallel training for LibTorch", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  const std::vector<Command> commands{
      run_command(app, arguments), node_command(app),   bench_command(app), ckpt_command(app),
      devices_command(app),        doctor_command(app), plan_command(app)};

  // CLI11 takes arguments in reverse order. Arguments after "--" belong to the program.
  const auto separator = std::ranges::find(arguments, "--");
  std::vector<std::string> ours(arguments.begin(), separator);
  std::ranges::reverse(ours);
  try {
    app.parse(ours);
  } catch (const CLI::Success& request) {
    return app.exit(request);
  }
  for (const auto& command : commands) {
    if (command.app->parsed()) return command.run({separator, arguments.end()});
  }
  std::cerr << app.help();
  return kUsageError;
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  try {
    return parse_and_run(arguments);
  } catch (const CLI::ParseError& error) {
    log(LogLevel::error, std::string(error.what()) + " (see lockstep --help)");
    return kUsageError;
  } catch (const ArgumentError& error) {
    log(LogLevel::error, error.what());
    return kUsageError;
  } catch (const launch::ProgramError& error) {
    log(LogLevel::error, error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
    return 1;
  }
}

}  // namespace lockstep::cli
