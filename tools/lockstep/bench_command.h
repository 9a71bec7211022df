// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep bench [--nproc N] COLLECTIVE [OPTIONS...]`: runs the program lockstep-bench, in the folder of
// this one, as N ranks. The other options are that program's; they are parsed here first, so that an error
// appears once and before a rank starts.
class BenchCommand {
 public:
  explicit BenchCommand(CLI::App& app);
  BenchCommand(const BenchCommand&) = delete;
  BenchCommand& operator=(const BenchCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  int ranks_ = 2;
  CLI::App* command_;
};

}  // namespace lockstep::cli
