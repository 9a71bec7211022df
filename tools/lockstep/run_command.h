// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "run_arguments.h"

namespace lockstep::cli {

// `lockstep run [options] [--] program [arguments...]`. Options end at the program's name.
class RunCommand {
 public:
  explicit RunCommand(CLI::App& app);
  RunCommand(const RunCommand&) = delete;
  RunCommand& operator=(const RunCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  // The arguments, after `app` has parsed the command line up to the first "--". `rest`: the command line
  // from there on.
  RunArguments arguments(const std::vector<std::string>& rest) const;
  int run(const std::vector<std::string>& rest) const;

 private:
  void add_node_options();
  void add_rendezvous_options();
  void add_program_options();
  void add_output_options();
  void add_own_options();
  void add_torchrun_leftovers();

  RunArguments parsed_;
  CLI::App* command_;
};

}  // namespace lockstep::cli
