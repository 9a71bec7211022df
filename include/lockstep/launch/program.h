// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/base/env.h>
#include <lockstep/base/error.h>

namespace lockstep::launch {

/// The program cannot be started; nothing was. `exit_code()` is what a shell would exit with.
class ProgramError : public LaunchError {
 public:
  static constexpr int kNotFound = 127;
  static constexpr int kNotExecutable = 126;

  ProgramError(const std::string& message, int exit_code) : LaunchError(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// The file that execvp(3) would run for `name`: `name` itself when it has a slash, else the first executable
/// file of that name in the folders of PATH. Throws ProgramError saying why there is none.
std::string find_program(const std::string& name, const Env& env);

}  // namespace lockstep::launch
