// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// `lockstep bench [--nproc N] COLLECTIVE [OPTIONS...]`: runs the program lockstep-bench, which lies beside
/// this one, as N ranks. All options but the number of ranks are that program's, but read here first, so that
/// a mistake is told once and before anything starts.
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
