// SPDX-License-Identifier: BSD-3-Clause
// `lockstep ckpt`: a separate program, because it links LibTorch and `lockstep` does not.
#include <algorithm>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "commands.h"

namespace lockstep::ckpt {
namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;

int parse_and_run(int argc, char** argv) {
  CLI::App app("Inspect, compare and convert checkpoints, without Python", "lockstep ckpt");
  app.require_subcommand(1);
  const Command commands[] = {add_show_command(app),         add_diff_command(app),
                              add_convert_command(app),      add_verify_command(app),
                              add_strip_prefix_command(app), add_merge_command(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return app.exit(request);
  }
  return std::ranges::find_if(commands, [](const Command& command) { return command.app->parsed(); })->run();
}

int run(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const CLI::ParseError& error) {
    log(LogLevel::error, std::string(error.what()) + " (see lockstep ckpt --help)");
    return kUsageError;
  } catch (const ArgumentError& error) {
    log(LogLevel::error, error.what());
    return kUsageError;
  } catch (const c10::Error& error) {
    log(LogLevel::error, error.what_without_backtrace());
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
  }
  return kFailure;
}

}  // namespace
}  // namespace lockstep::ckpt

int main(int argc, char** argv) { return lockstep::ckpt::run(argc, argv); }
