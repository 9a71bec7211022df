// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/launch/options.h>
#include <lockstep/launch/worker_count.h>

namespace lockstep::cli {

/// What was written on the command line of `lockstep run`, unchecked.
struct RunArguments {
  std::string nproc_per_node = "1";
  std::string nnodes = "1";
  std::optional<int> node_rank{};
  std::optional<std::string> master_addr{};
  std::optional<int> master_port{};
  bool standalone = false;
  double grace_period = 5;
  std::vector<std::string> command{};
};

/// Throws ArgumentError, in the words of the command line, for what makes no sense.
launch::LaunchOptions launch_options(const RunArguments& arguments, const launch::Machine& machine);

/// `lockstep run [options] [--] program [arguments...]`. Options end at the program's name.
class RunCommand {
 public:
  explicit RunCommand(CLI::App& app);
  RunCommand(const RunCommand&) = delete;
  RunCommand& operator=(const RunCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  /// The arguments, once `app` has parsed what stands before the first "--"; `rest` is what stands from there
  /// on.
  RunArguments arguments(const std::vector<std::string>& rest) const;
  int run(const std::vector<std::string>& rest) const;

 private:
  RunArguments parsed_;
  CLI::App* command_;
};

}  // namespace lockstep::cli
