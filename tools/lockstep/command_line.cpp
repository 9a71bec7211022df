// SPDX-License-Identifier: BSD-3-Clause
#include "command_line.h"

#include <algorithm>
#include <iostream>

#include <CLI/CLI.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "bench_command.h"
#include "ckpt_command.h"
#include "devices_command.h"
#include "doctor_command.h"
#include "launch/rank_process.h"
#include "run_command.h"

namespace lockstep::cli {
namespace {

int parse_and_run(const std::vector<std::string>& arguments) {
  CLI::App app("Distributed data-parallel training for LibTorch", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  RunCommand run_command(app);
  BenchCommand bench_command(app);
  CkptCommand ckpt_command(app);
  DevicesCommand devices_command(app);
  DoctorCommand doctor_command(app);

  // CLI11 takes arguments in reverse order. Arguments after "--" belong to the program.
  const auto separator = std::ranges::find(arguments, "--");
  std::vector<std::string> ours(arguments.begin(), separator);
  std::ranges::reverse(ours);
  try {
    app.parse(ours);
  } catch (const CLI::Success& request) {
    return app.exit(request);
  }
  if (run_command.chosen()) return run_command.run({separator, arguments.end()});
  if (bench_command.chosen()) return bench_command.run();
  if (ckpt_command.chosen()) ckpt_command.run({separator, arguments.end()});
  if (devices_command.chosen()) return devices_command.run();
  if (doctor_command.chosen()) return doctor_command.run();
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
