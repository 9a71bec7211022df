// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/limits.h"

namespace lockstep {

// Runs the body of a program behind a `lockstep` command; `body` parses the command line of `app` and returns
// the exit code. Errors are one line on stderr: exit code 2 for the command line, else 1.
template <typename Body>
int run_program(CLI::App& app, Body body) {
  constexpr int kFailure = 1;
  constexpr int kUsageError = 2;
  try {
    const int code = body();
    require_output();
    return code;
  } catch (const CLI::Success& request) {
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    log(LogLevel::error, std::string(error.what()) + " (see " + app.get_name() + " --help)");
    return kUsageError;
  } catch (const ArgumentError& error) {
    log(LogLevel::error, error.what());
    return kUsageError;
  } catch (const c10::Error& error) {
    log(LogLevel::error, error.what_without_backtrace());
  } catch (const std::exception& error) {
    log(LogLevel::error, exception_text(error));
  }
  return kFailure;
}

}  // namespace lockstep
