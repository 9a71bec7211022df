// SPDX-License-Identifier: BSD-3-Clause
// `lockstep ckpt`: a program of its own, since it links LibTorch, which `lockstep` does without.
#include <iostream>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "convert_command.h"
#include "diff_command.h"
#include "merge_command.h"
#include "show_command.h"
#include "strip_prefix_command.h"
#include "verify_command.h"

namespace lockstep::ckpt {
namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;

int parse_and_run(int argc, char** argv) {
  CLI::App app("Look into checkpoints, compare and change them; no Python is needed", "lockstep ckpt");
  app.require_subcommand(1);
  const ShowCommand show(app);
  const DiffCommand diff(app);
  const ConvertCommand convert(app);
  const VerifyCommand verify(app);
  const StripPrefixCommand strip_prefix(app);
  const MergeCommand merge(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return app.exit(request);
  }
  if (show.chosen()) return show.run();
  if (diff.chosen()) return diff.run();
  if (convert.chosen()) return convert.run();
  if (verify.chosen()) return verify.run();
  if (strip_prefix.chosen()) return strip_prefix.run();
  return merge.run();
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
