// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep ckpt show|diff|convert|verify|strip-prefix|merge ...`: executes the program lockstep-ckpt in the
// folder of this one.
class CkptCommand {
 public:
  explicit CkptCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // Throws or does not return. `rest`: the command line from the first "--" on.
  [[noreturn]] void run(const std::vector<std::string>& rest) const;

 private:
  CLI::App* command_;
};

}  // namespace lockstep::cli
